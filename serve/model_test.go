package serve

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	seed  = flag.Uint64("seed", 0, "of TestAgainstAModel; 0: a new one")
	steps = flag.Int("steps", 600, "of TestAgainstAModel")
)

// A modelRule is a fixed window, by the letter of its key.
type modelRule struct {
	limit          int
	window         time.Duration
	unit           string
	shadow, quota  bool
	always, denies bool // counts what it denies; a denial denies the request
}

var modelRules = map[string]modelRule{
	"a": {limit: 3, window: time.Second, unit: "second", denies: true},
	"b": {limit: 5, window: time.Minute, unit: "minute", denies: true},
	"c": {limit: 4, window: time.Minute, unit: "minute", shadow: true},
	"d": {limit: 2, window: time.Hour, unit: "hour", quota: true},
	"e": {limit: 4, window: time.Minute, unit: "minute", always: true, denies: true},
	"z": {limit: 0, window: time.Hour, unit: "hour", denies: true},
}

const modelFile = `
domain: shop
descriptors:
- {key: a, rate_limit: {unit: second, requests_per_unit: 3}}
- {key: b, rate_limit: {unit: minute, requests_per_unit: 5}}
- {key: c, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 4}}
- {key: d, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: e, rate_limit: {unit: minute, requests_per_unit: 4, count_denied: true}}
- {key: z, rate_limit: {unit: hour, requests_per_unit: 0}}
`

// A model is the counts of windows, and decides one descriptor after the other.
type model struct {
	countDenied bool
	counts      map[string]int // by descriptor and the number of the window
}

type modelHit struct {
	key  string
	hits int
	modelRule
}

func (m *model) at(h modelHit, now time.Time) *int {
	k := fmt.Sprint(h.key, now.UnixNano()/int64(h.window))
	n := m.counts[k]
	return &n
}

func (m *model) add(h modelHit, now time.Time) {
	m.counts[fmt.Sprint(h.key, now.UnixNano()/int64(h.window))] += h.hits
}

// answer is what the service has to answer, as short has it.
func (m *model) answer(all []modelHit, now time.Time) string {
	over := make([]bool, len(all))
	counts := func(h modelHit) bool { return h.limit > 0 && (h.always || m.countDenied) }
	denied := false
	for i, h := range all { // what counts always
		switch {
		case h.limit == 0:
			over[i] = h.hits > 0
		case counts(h):
			m.add(h, now)
			over[i] = *m.at(h, now) > h.limit
		}
		denied = denied || over[i] && h.denies
	}
	fits := func(h modelHit) bool { return *m.at(h, now)+max(h.hits, 1) <= h.limit }
	for i, h := range all { // what denies, all or nothing
		if h.limit > 0 && !counts(h) && h.denies {
			over[i] = !fits(h)
			denied = denied || over[i]
		}
	}
	var taken []modelHit
	take := func(h modelHit) {
		m.add(h, now)
		taken = append(taken, h)
	}
	if !denied {
		for _, h := range all {
			if h.limit > 0 && !counts(h) && h.denies {
				take(h)
			}
		}
	}
	quotas, used := 0, 0
	for i, h := range all {
		if h.quota {
			if !counts(h) {
				over[i] = !fits(h)
				if !over[i] && !denied {
					take(h)
				}
			}
			if quotas++; over[i] {
				used++
			}
		}
	}
	if quotas > 0 && quotas == used && !denied {
		denied = true
		for _, h := range taken {
			h.hits = -h.hits
			m.add(h, now)
		}
	}
	for i, h := range all {
		if h.shadow && !counts(h) {
			over[i] = !fits(h)
			if !over[i] && !denied {
				take(h)
			}
		}
	}
	text := "OK"
	if denied {
		text = "OVER"
	}
	for i, h := range all {
		word, left := "OK", max(0, h.limit-*m.at(h, now))
		if over[i] && !h.shadow {
			word = "OVER"
		}
		if over[i] {
			left = 0
		}
		reset := (h.window - time.Duration(now.UnixNano())%h.window + time.Second - 1).Truncate(time.Second)
		text += fmt.Sprintf(" | %s %d of %d/%s, %v", word, left, h.limit, h.unit, reset)
	}
	return text
}

// TestAgainstAModel compares random requests, whose clock runs through hours, with a model of fixed windows.
func TestAgainstAModel(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("-seed %d", *seed)
	for _, countDenied := range []bool{false, true} {
		random := rand.New(rand.NewPCG(*seed, 1))
		o := Options{CountDenied: countDenied, Files: func() ([]Source, error) { return []Source{{"f", []byte(modelFile)}}, nil }}
		onStage(t, o, func(t *testing.T, s stage) {
			m := &model{countDenied: countDenied, counts: map[string]int{}}
			denials := 0
			for step := range *steps {
				if random.IntN(3) == 0 {
					s.Advance([]time.Duration{time.Millisecond, 300 * time.Millisecond, 7 * time.Second, 20 * time.Minute}[random.IntN(4)])
				}
				var all []modelHit
				var texts []string
				used := map[string]bool{}
				for range 1 + random.IntN(4) {
					letter := string("aabbcddez"[random.IntN(9)])
					key := fmt.Sprintf("%s=%d", letter, random.IntN(2))
					if used[key] {
						continue
					}
					used[key] = true
					hits := []int{0, 1, 1, 1, 2, 3, 6}[random.IntN(7)]
					all = append(all, modelHit{key, hits, modelRules[letter]})
					texts = append(texts, fmt.Sprintf("%s:%d", key, hits))
				}
				want := m.answer(all, time.Now())
				got := s.ask(request(1, texts...))
				require.Equal(t, want, got, "-seed %d, step %d: %v at %v, count denied %t", *seed, step, texts, time.Now().UTC(), countDenied)
				if want[:2] == "OV" {
					denials++
				}
			}
			require.Greater(t, denials, *steps/10)
			require.Less(t, denials, *steps*9/10)
		})
	}
}
