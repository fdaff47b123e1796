package vectors

import "time"

// A step is an operation, so long after the one before it. What it shows stands beside it in the file.
type step struct {
	after     time.Duration // below 0: the clock steps back
	operation string
	about     string
}

// tell makes the cases of chosen steps.
func (h *history) tell(steps []step) []Case {
	now := int64(start)
	for _, s := range steps {
		now += s.after.Microseconds()
		h.do(now, s.operation, s.about)
	}
	return h.cases
}
