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
	members []member // in their order
	shorter bool     // the last member has come back
}

type member struct{ number, score int64 }

func (s *sorted) model() model.Settler { return s.m }

func (s *sorted) window() int64 { return s.rule.Window.Microseconds() }

// newest is the score of the last member as it counts now, 0 if there is none.
func (s *sorted) newest(now int64) int64 {
	if len(s.members) == 0 {
		return 0
	}
	return min(s.members[len(s.members)-1].score, now)
}

// number is that of the last member. The next one has the next number.
func (s *sorted) number() int64 {
	if len(s.members) == 0 {
		return 1_000_000_000
	}
	return s.members[len(s.members)-1].number
}

func (s *sorted) words(now int64) []int64 {
	if len(s.m.State()) == 0 { // the key has expired
		s.members = nil
	}
	used := int64(0)
	for _, m := range s.members {
		if m.score > now-s.window() {
			used++
		}
	}
	return []int64{s.newest(now) - now, 0, used}
}

func (s *sorted) allowed(words []int64, _ int64, taken int, denied *model.Answer) {
	if taken > 0 {
		words[0] = 0 // the last member is of now
	}
	if denied != nil {
		words[1] = denied.RetryAfter.Microseconds()
	}
}

func (s *sorted) used(int64) int64 { return int64(counted(s.m.State(), -1<<62)) }

func (s *sorted) repairs(now int64) bool {
	return len(s.members) > 0 && s.members[len(s.members)-1].score > now
}

func (s *sorted) last() int64       { return s.number() }
func (s *sorted) which(n int) int64 { return s.number() - int64(n) + 1 }

// giveBack deletes the ticket's first members.
func (s *sorted) giveBack(now int64, n int, place, which int64) {
	before, last := len(s.members), s.number()
	s.members = slices.DeleteFunc(s.members, func(m member) bool {
		return m.score == place && m.number >= which && m.number < which+int64(n)
	})
	if given := before - len(s.members); given > 0 {
		s.m.GiveBack(now, given, place)
		s.shorter = s.number() < last
	}
}

func (s *sorted) write(now, old int64, back bool) (any, int64) {
	stepped := s.repairs(now)
	for i := range s.members {
		s.members[i].score = min(s.members[i].score, now)
	}
	if stepped { // the last one gets another name
		s.members[len(s.members)-1].number++
	}
	ttl := evenly(s.window()/1000) + 101
	if back {
		if len(s.members) == 0 {
			return nil, 0
		}
		if ttl = old; s.shorter {
			ttl = evenly(max(s.newest(now)+s.window()-now, 0)/1000) + 101
		}
	} else {
		number := s.number()
		s.members = slices.DeleteFunc(s.members, func(m member) bool { return m.score <= now-s.window() })
		for taken := counted(s.m.State(), -1<<62) - len(s.members); taken > 0; taken-- {
			number++
			s.members = append(s.members, member{number, now})
		}
	}
	state := map[string]int64{}
	for _, m := range s.members {
		state[fmt.Sprintf("%d/%d", m.number, s.window())] = m.score
	}
	return state, ttl
}

// zsets are sliding windows in a sorted set.
func zsets() []Group {
	const limit, window = 5, time.Minute
	g := Group{
		Algorithm: "slidingwindow-zset", Script: "slidingwindow_zset", Key: "ratelimit:default:slidingwindow-zset{k}",
		Rule: map[string]int64{"limit": limit, "window": window.Microseconds()}, Args: texts(limit, window.Microseconds()),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingWindow(c, limit, window, ratelimit.WithStorage(ratelimit.StorageZSet))
		},
	}
	h := newHistory(&sorted{m: model.NewSlidingZSet(limit, window), rule: model.Rule{Limit: limit, Window: window}}, 0)
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
