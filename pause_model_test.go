package ratelimit_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// TestPausesAreThoseOfTheModel: random pauses, calls, successes, strikes and turns that are given back, alone and in lists.
// Times are often such that an end comes exactly now.
func TestPausesAreThoseOfTheModel(t *testing.T) {
	test := func(t *testing.T, s *limitertest.Stage, steps bool) {
		rng := model.Seeded(limitertest.Seed(t))
		for range limitertest.Rounds(300, 12) {
			s.Wipe(t)
			var lease int64
			opts := s.Opts
			if rng.IntN(3) > 0 {
				lease = int64(1+rng.IntN(4)) * 1_000
				opts = append(opts[:len(opts):len(opts)], ratelimit.WithProbe(time.Duration(lease)*time.Microsecond))
			}
			l := ratelimit.Must(ratelimit.NewPause(s.Client, opts...))
			m := model.NewPause(lease)
			m.CallersClock = s.MaxSkew > 0
			lengths, quiet := []int64{2_000, 5_000, 9_000}[:1+rng.IntN(3)], int64(1+rng.IntN(5))*4_000
			stepsBack := steps && rng.IntN(2) == 0
			var turn int64 // the last ticket
			var history []string
			for range 40 {
				s.Advance(time.Duration(rng.IntN(4)*1_000+rng.IntN(2)) * time.Microsecond)
				if back := time.Duration(1 + rng.IntN(20_000)); stepsBack && rng.IntN(10) == 0 {
					s.Advance(-back * time.Microsecond)
				} else if stepsBack && rng.IntN(5) == 0 {
					s.Advance(-time.Microsecond)
				}
				if stepsBack && s.Admin.Exists(ctx, ratelimit.NameOf(l, "k")).Val() == 0 { // that pause was over before
					m = model.NewPause(lease)
				}
				now := s.Now.UnixMicro()
				var list []string
				var want []int64
				for range 1 + rng.IntN(3) {
					kind := rng.IntN(8)
					if kind != 3 {
						m.See(now)
					}
					switch kind {
					case 0:
						d := int64(rng.IntN(9)) * 1_000
						list = append(list, fmt.Sprintf("1p%d", d))
						m.Pause(now, d)
						want = append(want, lookAt(m, now)...)
					case 1:
						list = append(list, "1f")
						m.Resume(now)
						want = append(want, lookAt(m, now)...)
					case 2:
						wait := int64(rng.IntN(4)) * 3_000
						list = append(list, fmt.Sprintf("1t%d/%d:%s", wait, quiet, strings.Trim(strings.ReplaceAll(fmt.Sprint(lengths), " ", ":"), "[]")))
						m.Strike(now, wait, quiet, lengths)
						want = append(want, lookAt(m, now)...)
					case 3:
						list = append(list, fmt.Sprintf("2g%d/0", turn))
						want = append(want, 2*m.GiveBack(now, turn))
					case 4:
						list = append(list, "7c2")
						want = append(want, 2, 0, 0)
						if _, free, left := m.Held(now); !free {
							want[len(want)-1] = left
						}
					case 5:
						list = append(list, "3e2")
						allowed, holds, left := m.Take(now, 2)
						turn = 0
						if holds == 2 && allowed > 0 {
							turn = now
						}
						want = append(want, allowed, holds, left, turn, 0)
					default:
						list = append(list, "1x3")
						allowed, holds, left := m.Take(now, 3)
						want = append(want, allowed, holds, left)
					}
				}
				text := strings.Join(list, ",")
				history = append(history, fmt.Sprintf("%v %s", s.Now.Sub(limitertest.Start), text))
				got, err := ratelimit.DecideList(l, "k", []byte(text))
				require.NoError(t, err)
				require.Equal(t, want, got, "lease %d, steps %v, quiet %d:\n%s", lease, lengths, quiet, strings.Join(history, "\n"))

				seen := *m
				seen.See(now)
				holds, free, left := seen.Held(now)
				r := must(t)(l.Peek(ctx, "k"))
				require.Equal(t, pauseResult(holds, free, left, lease, 0), r)
				if name := ratelimit.NameOf(l, "k"); s.Admin.Exists(ctx, name).Val() == 1 {
					require.Contains(t, s.Look(t, name), " expires")
				}
			}
		}
	}
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) { test(t, s, false) })
	// On miniredis, a TTL does not step back with the clock.
	t.Run("a clock that steps back", func(t *testing.T) { test(t, limitertest.OnHeldRedis(t), true) })
}

// lookAt is the words of a look.
func lookAt(m *model.Pause, now int64) []int64 {
	holds, free, left := m.Held(now)
	if free {
		return []int64{1, holds, left}
	}
	return []int64{0, holds, left}
}

// pauseResult is what a call gets, of which so many permits are taken.
func pauseResult(holds int64, allowed bool, left, lease, taken int64) ratelimit.Result {
	r := ratelimit.Result{Allowed: allowed}
	if !allowed {
		r.RetryAfter = time.Duration(left) * time.Microsecond
		r.ResetAfter = r.RetryAfter
	}
	if holds == 2 {
		r.Limit, r.Window = 1, time.Duration(lease)*time.Microsecond
		if allowed && taken == 0 {
			r.Remaining = 1
		}
	}
	return r
}
