package vectors

import (
	"fmt"
	"slices"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A sorted is a sorted set with a member for each permit, scored by its instant. The numbers of the members count up.
type sorted struct {
	m       *model.SlidingLog
	rule    model.Rule
	spare   int64    // milliseconds
	members []member // in their order
	taken   int      // by the last call
	shorter bool     // the last member has come back
}

type member struct {
	number, score int64
	mark          string // @ of a caller's clock, and ! if it has come back
}

func (s *sorted) model() model.Settler { return s.m }

func (s *sorted) window() int64 { return s.rule.Window.Microseconds() }

// number is that of the last member. The next one has the next number.
func (s *sorted) number() int64 { return s.newest().number }

// newest is the last member.
func (s *sorted) newest() member {
	if len(s.members) == 0 {
		return member{number: 1_000_000_000}
	}
	return s.members[len(s.members)-1]
}

// at is the instant at which a call is decided: not before that of the last member, if a caller's clock dated it, or decides.
func (s *sorted) at(now int64) int64 {
	if last := s.newest(); s.spare > 0 || last.mark != "" {
		return max(now, last.score)
	}
	return now
}

// counts is how many members are permits of the window.
func (s *sorted) counts(now int64) (used int64) {
	for _, m := range s.members {
		if m.score > s.at(now)-s.window() && m.mark != "@!" {
			used++
		}
	}
	return used
}

func (s *sorted) words(now int64) []int64 {
	if len(s.m.State()) == 0 { // the key has expired
		s.members = nil
	}
	return []int64{min(s.newest().score, s.at(now)) - now, 0, s.counts(now)}
}

func (s *sorted) allowed(words []int64, now int64, taken int, denied *model.Answer) {
	if s.taken = taken; taken > 0 {
		words[0] = s.at(now) - now // the last member is of then
	}
	if denied != nil {
		words[1] = denied.RetryAfter.Microseconds()
	}
}

func (s *sorted) used(int64) int64 { return int64(counted(s.m.State(), -1<<62)) }

func (s *sorted) repairs(now int64) bool { return s.newest().score > s.at(now) }

func (s *sorted) last() int64       { return s.number() }
func (s *sorted) which(n int) int64 { return s.number() - int64(n) + 1 }

// giveBack deletes the ticket's first members. The last one of a caller's clock stays, with another name.
func (s *sorted) giveBack(now int64, n int, place, which int64) {
	before, last := s.used(now), s.newest()
	s.members = slices.DeleteFunc(s.members, func(m member) bool {
		return m.score == place && m.number >= which && m.number < which+int64(n) && m.mark != "@!"
	})
	s.m.GiveBack(now, n, place)
	s.shorter = before > s.used(now) && s.newest() != last
	if s.shorter && last.mark == "@" {
		last.mark = "@!"
		s.members = append(s.members, last)
	}
}

func (s *sorted) write(now, old int64, back bool) (any, int64) {
	at := s.at(now)
	long := func(us int64) int64 { return evenly(max(us, 0)/1000) + 101 + s.spare }
	ttl := old
	switch last := s.newest(); {
	case back && len(s.members) == 0:
		return nil, 0
	case back && last.mark == "@!" && s.counts(now) == 0: // only its instant is needed
		ttl = long(at - now)
	case back && last.mark != "@!" && s.shorter:
		ttl = long(last.score + s.window() - now)
	case !back:
		needed := at + s.window() - now
		ttl = long(needed)
		if s.repairs(now) { // the last one gets another name
			s.members[len(s.members)-1].number++
		} else if len(s.members) > 0 && (at > now || last.mark != s.mark()) && old*1000 >= needed+s.spare*1000 {
			ttl = old // after a member of another clock, or of one that is ahead, it only grows
		}
		number, mark := s.number(), s.mark()
		if at > now {
			mark = "@"
		}
		for i := range s.members {
			s.members[i].score = min(s.members[i].score, at)
		}
		s.members = slices.DeleteFunc(s.members, func(m member) bool { return m.score <= at-s.window() || m.mark == "@!" })
		for range s.taken {
			number++
			s.members = append(s.members, member{number, at, mark})
		}
	}
	state := map[string]int64{}
	for _, m := range s.members {
		state[fmt.Sprintf("%d/%d%s", m.number, s.window(), m.mark)] = m.score
	}
	return state, ttl
}

// mark is that of members by this clock.
func (s *sorted) mark() string {
	if s.spare > 0 {
		return "@"
	}
	return ""
}

// inSortedSet are sliding windows of a minute in a sorted set.
func inSortedSet(limit int) Group {
	const window = time.Minute
	g := Group{
		Algorithm: "slidingwindow-zset", Script: "slidingwindow_zset", Key: "ratelimit:default:slidingwindow-zset{k}",
		Rule: map[string]int64{"limit": int64(limit), "window": window.Microseconds()}, Args: texts(int64(limit), window.Microseconds()),
	}
	g.byClocks(func(c ratelimit.Client, options ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewSlidingWindow(c, limit, window, append(options, ratelimit.WithStorage(ratelimit.StorageZSet))...)
	})
	return g
}

func newSorted(limit int) *sorted {
	return &sorted{m: model.NewSlidingZSet(limit, time.Minute), rule: model.Rule{Limit: limit, Window: time.Minute}}
}

// zsets are sliding windows in a sorted set.
func zsets() []Group {
	const limit = 5
	g := inSortedSet(limit)
	h := newHistory(newSorted(limit), 0)
	g.Cases = h.tell([]step{
		{0, "look", "An absent key is an unused limiter. A look writes nothing"},
		{0, "2e1", "Two permits are two members of now. The ticket is where they are, and the number of the last one"},
		{10 * time.Second, "1x3", "Of three requests all are allowed: three members, whose numbers go on"},
		{time.Second, "1x1", "A denial changes nothing. The wait ends when the oldest member has left the window"},
		{time.Second, "2c1", "A charge is taken though nothing is left"},
		{time.Second, fmt.Sprintf("1g%d/1000000001", int64(start)), "One permit of the ticket comes back: its first member goes. The TTL stays, as the last member does"},
		{time.Second, fmt.Sprintf("2g%d/1000000006", int64(start)+12_000_000), "The charge comes back: the key lives for as long as the member that is the last one now"},
		{-6 * time.Second, "2x1", "The server's clock stepped back, so members are of now, and the last one gets the next number: though the call is denied"},
		{60050 * time.Millisecond, "3x1", "All members have left the window and go. The numbers go on, as the key was still there"},
	})
	return []Group{g}
}
