package model

// Headroom is a model that leaves the last X permits to others: it allows n permits where
// the model allows n + X.
type Headroom struct {
	Model
	X int
}

// Take implements [Model].
func (h Headroom) Take(now int64, n int, peek bool) Answer {
	a := h.Model.Take(now, n+h.X, true)
	switch {
	case !a.Allowed && !peek:
		a = h.Model.Take(now, n+h.X, false) // a denial repairs, and takes nothing
	case !peek:
		a = h.Model.Take(now, n, false)
	}
	a.Remaining = max(a.Remaining-h.X, 0)
	return a
}

// Max implements [Model].
func (h Headroom) Max() int { return h.Model.Max() - h.X }
