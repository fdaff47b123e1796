package vectors

import (
	"strconv"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A hashed is a log in a hash: first is the number of entry 0.
type hashed struct {
	log
	first int
}

func (h *hashed) write(now, old int64, back bool) (any, int64) {
	kept, base := h.entries, h.base
	state, ttl := h.log.write(now, old, back)
	list, ok := state.([]string)
	if !ok {
		h.first = 0
		return nil, 0
	}
	if h.base == 0 && base > 0 || len(kept) == 0 { // a new log
		h.first = 0
	}
	for _, e := range kept { // each entry that was forgotten
		if h.base > base && e.At < h.entries[0].At {
			h.first++
		}
	}
	fields := map[string]string{"rule": list[0], "base": list[1], "oldest": list[2]}
	last := len(list)/2 - 1 // from entry 0
	for i := 1; i < last; i++ {
		fields[strconv.Itoa(h.first+i)] = list[2*i] + "/" + list[2*i+1]
	}
	fields["instant"], fields["total"] = list[2*last], list[2*last+1]
	fields["first"], fields["last"] = strconv.Itoa(h.first), strconv.Itoa(h.first+last)
	return fields, ttl
}

// meaningful are the fields of a hash without the numbers that mean nothing.
func meaningful(fields map[string]string) map[string]string {
	first, _ := strconv.Atoi(fields["first"])
	last, _ := strconv.Atoi(fields["last"])
	all := map[string]string{}
	for field, text := range fields {
		if n, err := strconv.Atoi(field); err != nil || n > first && n < last {
			all[field] = text
		}
	}
	return all
}

// hashes are sliding windows in a hash.
func hashes() (groups []Group) {
	for _, r := range []struct {
		rule  model.Rule
		parts int
		back  bool
		cases int
	}{
		{model.Rule{Limit: 5, Window: time.Minute}, 10, false, 15},
		{model.Rule{Limit: 20, Window: time.Second}, 40, true, 15},
	} {
		slot := r.rule.Window / time.Duration(r.parts)
		window := texts(r.rule.Window.Microseconds(), slot.Microseconds())
		g := Group{
			Algorithm: "slidingwindow-hash", Script: "slidingwindow_hash", Key: "ratelimit:default:slidingwindow-hash{k}",
			Rule: map[string]int64{"limit": int64(r.rule.Limit), "window": r.rule.Window.Microseconds(), "sub_windows": int64(r.parts)},
			Args: append([]string{strings.Join(window, "/"), window[1]}, texts(int64(r.rule.Limit), r.rule.Window.Microseconds())...),
			Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
				return ratelimit.NewSlidingWindow(c, r.rule.Limit, r.rule.Window,
					ratelimit.WithSubWindows(r.parts), ratelimit.WithStorage(ratelimit.StorageHash))
			},
		}
		rules := []model.Rule{r.rule}
		of := log{m: model.NewSlidingLog(rules, slot), rules: rules, slot: slot.Microseconds()}
		g.Cases = newHistory(&hashed{log: of}, 400+len(groups)).steps(r.cases, start, r.back)
		groups = append(groups, g)
	}
	return groups
}
