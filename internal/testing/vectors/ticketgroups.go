package vectors

import (
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// ticketGroups are limiters whose tickets have a lease: each with an unused key, and the steps of its cases.
var ticketGroups = []func() (Group, *ticketed, []step){ticketsOfBuckets, ticketsOfWindows, ticketsOfCalendars, ticketsOfLogs, ticketsOfRules}

func tickets() (all []Group) {
	for _, ofLimiter := range ticketGroups {
		g, of, steps := ofLimiter()
		name := "ratelimit:default:" + g.Algorithm
		g.About, g.Key, g.Beside = "whose tickets have a lease: WithTicketLease", name+"{k}", name+"/tickets{k}"
		g.Cases = narrate(of, steps)
		all = append(all, g)
	}
	return all
}

var withLease = ratelimit.WithTicketLease(4 * time.Second)

func ticketsOfBuckets() (Group, *ticketed, []step) {
	const burst = 3
	g := Group{
		Algorithm: "tokenbucket", Script: "bucket,tickets",
		Rule: map[string]int64{"count": 1, "period": 10_000_000, "burst": burst}, Args: append(texts(30_000_000, 10_000_000, 1), "/10000000/1"),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.Rate{Count: 1, Period: 10 * time.Second}, burst, withLease)
		},
	}
	b := &bucket{m: model.NewTokenBucket(1, 10*time.Second, burst), permit: 10_000_000, flow: 1}
	of := &ticketed{book: b, how: '2', counts: func(now int64) int64 {
		units, _ := b.present(now)
		return units.Int64()
	}}
	return g, of, []step{
		{0, "2a2/4000000/JOB1", "An estimate of two permits: the second key has the ticket, scored by the end of its lease"},
		{time.Second, "2x1", "Denied for nine seconds; but the ticket ends in three, and then two permits come back. That is the last word"},
		{time.Second, "1w2/2/1763670000000000/0/4000000/JOB1", "The lease begins again"},
		{0, "1m2/2/1763670000000000/0/4000000/JOB1", "The ticket takes one permit more: the member has another name"},
		{time.Second, "1u2/3/1763670000000000/0/4000000/JOB1", "It is settled: one permit was used, so two come back, and the ticket goes"},
		{0, "1a2/4000000/JOB2", "Another ticket"},
		{0, "3x1", "The ticket ends in four seconds, but three permits fit in seven, when enough is restored besides"},
		{4 * time.Second, "look", "Its lease has ended: any call gives it back first, and a look too writes that"},
		{0, "2u2/1/1763670003000000/0/4000000/JOB2", "It is settled too late: all that was used is charged"},
	}
}

func ticketsOfWindows() (Group, *ticketed, []step) {
	const limit, window = 5, 10 * time.Second
	g := Group{
		Algorithm: "fixedwindow", Script: "datedwindow,tickets",
		Rule: map[string]int64{"limit": limit, "window": window.Microseconds()}, Args: append(texts(limit, window.Microseconds()), "first"),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewFixedWindow(c, limit, window, withLease)
		},
	}
	place := func(at int64) string { return fmt.Sprintf("%d/0", int64(start)+at*1_000_000) }
	w := dated(model.NewClockWindow(limit, window), limit)
	return g, &ticketed{book: w, how: '0', counts: w.left}, []step{
		{0, "3a0/4000000/JOB1", "The ticket says which window its permits are of, by its start"},
		{time.Second, "3x1", "Denied until the ticket ends, which is sooner than the window"},
		{time.Second, "1m0/3/" + place(0) + "/4000000/JOB1", "One permit more, of the same window: one ticket of four"},
		{2 * time.Second, "2u0/4/" + place(0) + "/4000000/JOB1", "Two were used, and two come back"},
		{0, "1a0/20000000/JOB2", "A ticket that lasts longer than the window. The second key is kept for as long"},
		{7 * time.Second, "1m0/1/" + place(0) + "/20000000/JOB2", "The window is over. What the ticket takes now is of the next one, and what it took before is forgotten"},
		{0, "0u0/1/" + place(11) + "/20000000/JOB2", "Nothing was used: the window is unused again, and both keys go"},
	}
}

func ticketsOfCalendars() (Group, *ticketed, []step) {
	const limit = 5
	g := ofDays(limit, withLease)
	g.Script += ",tickets"
	today := fmt.Sprintf("%d/0", int64(midnight))
	w := calendar(model.NewCalendarWindow(limit, model.Days(time.UTC)), limit)
	return g, &ticketed{book: w, how: '0', counts: w.left}, []step{
		{0, "3a0/4000000/JOB1", "The ticket says which day its permits are of, by its end"},
		{time.Second, "3x1", "Denied until the ticket ends, which is sooner than the day"},
		{0, "1m0/3/" + today + "/4000000/JOB1", "One permit more, of the same day: one ticket of four"},
		{time.Second, "1u0/4/" + today + "/4000000/JOB1", "One was used, and three come back. The state is dated now"},
		{0, "1a0/20000000000/JOB2", "A ticket that lasts until tomorrow"},
		{0, "3a0/4000000/JOB3", "A ticket that takes what is left"},
		{4 * time.Second, "1x1", "Its lease has ended: three permits come back, of which one is taken"},
		{(midnight - start - 6_000_000) * time.Microsecond, "2x1", "Midnight. The clock says which day it is, and not the arguments"},
		{0, "4x1", "Denied until the next midnight: the ticket of yesterday makes no room today"},
		{0, "2u0/1/" + today + "/20000000000/JOB2", "Of it two were used: the one that it had not taken is a charge, today"},
	}
}

func ticketsOfLogs() (Group, *ticketed, []step) {
	const limit, slot = 6, 6_000_000
	g := Group{
		Algorithm: "slidingwindow-list", Script: "slidingwindow_list,tickets",
		Rule: map[string]int64{"limit": limit, "window": 60_000_000, "sub_windows": 10},
		Args: append([]string{"60000000/6000000"}, texts(slot, limit, 60_000_000)...),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingWindow(c, limit, time.Minute, ratelimit.WithSubWindows(10), withLease)
		},
	}
	dated := int64(start - start%slot + slot - 1)
	place := func(slots int64) string { return fmt.Sprintf("%d/0", dated+slots*slot) }
	return g, ticketedLog([]model.Rule{{Limit: limit, Window: time.Minute}}, slot), []step{
		{0, "3a3/20000000/JOB1", "The ticket says which entry its permits are in, by the entry's instant"},
		{7 * time.Second, "1m3/3/" + place(0) + "/20000000/JOB1", "One permit more is in another entry: a second ticket of the same id. The lease of the first one begins again"},
		{5 * time.Second, "3x1", "Denied until the first entry leaves the window; but the first ticket ends in fifteen seconds, and then its permits come back"},
		{0, "1u3/3/" + place(0) + "/20000000/JOB1", "One was used, and two come back: the totals from the entry on are less by two"},
		{0, "3u3/1/" + place(1) + "/20000000/JOB1", "Of the second ticket three were used: two more than it took are a charge, in the entry of now"},
		{0, "2a3/4000000/JOB2", "Another ticket. Nothing is left"},
		{4 * time.Second, "look", "Its lease has ended: its permits come back, from the entry that others are in too"},
		{0, "1a3/100000000/JOB3", "A ticket that lasts longer than the window. The second key is kept for as long"},
		{0, "3x1", "That ticket is of no help. The last word is when the first entry has left the window, as without tickets"},
	}
}

func ticketsOfRules() (Group, *ticketed, []step) {
	const slot = 100_000
	rules := []model.Rule{{Limit: 3, Window: time.Second}, {Limit: 5, Window: 10 * time.Second}}
	g := Group{
		Algorithm: "slidinglog", Script: "slidinglog,tickets",
		Rule: map[string]int64{"limit_1": 3, "window_1": 1_000_000, "limit_2": 5, "window_2": 10_000_000, "resolution": slot},
		Args: append([]string{"10000000/100000"}, texts(slot, 2, 3, 1_000_000, 5, 10_000_000)...),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingLog(c, []ratelimit.Rule{ratelimit.Rule(rules[0]), ratelimit.Rule(rules[1])},
				ratelimit.WithResolution(slot*time.Microsecond), withLease)
		},
	}
	return g, ticketedLog(rules, slot), []step{
		{0, "3a3/4000000/JOB1", "A log of two rules: the word behind the permits used by each says which one denies, from 1"},
		{2 * time.Second, "2a3/500000/JOB2", "A ticket that ends sooner"},
		{200 * time.Millisecond, "2x1", "Both rules deny. The second ticket's end makes room under both, which is the last word"},
		{0, "3x1", "Under the first rule there is room when the second ticket ends, under the other only when the first one has ended too"},
		{400 * time.Millisecond, "3x1", "The second ticket has ended, and its entry goes, though the call is denied. Now the other rule alone denies it"},
		{9 * time.Second, "1a3/1000000/JOB3", "The first ticket has ended too: a new log"},
		{200 * time.Millisecond, "1a3/1000000/JOB4", "A ticket in a second entry"},
		{200 * time.Millisecond, "1a3/1000000/JOB5", "And one in a third"},
		{2 * time.Second, "look", "All three have ended: no entry is left, and the key goes"},
	}
}

func ticketedLog(rules []model.Rule, slot int64) *ticketed {
	l := &log{m: model.NewSlidingLog(rules, time.Duration(slot)*time.Microsecond), rules: rules, slot: slot}
	return &ticketed{book: l, how: '3', counts: func(now int64) int64 { return evenly(l.m.Needed(now).Milliseconds()) * 1000 }}
}
