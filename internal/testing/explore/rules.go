package explore

// A Bucket is one configuration of the bucket.
type Bucket struct {
	Burst int // permits
	Flow  int // units that a tick restores
}

// Cancelling is what a cancelled reservation gives back.
type Cancelling int

const (
	// AllIfLast gives back all if the key still holds what the reservation wrote: then the
	// state is again what it was before. Otherwise others have reserved behind it, and the cancel
	// waits until the key holds that again, because they have cancelled too.
	AllIfLast Cancelling = iota
	// All gives back everything, whoever has reserved since.
	All
	// LessByState gives back the permits less those that were reserved since, as the level
	// shows them.
	LessByState
	// LessByMark gives back the permits less what the rate restores between the instant of
	// the reservation and the latest instant that was ever promised.
	LessByMark
	// AllIfInstant gives back all if the state's instant is that of the reservation.
	AllIfInstant
)

func (c Cancelling) String() string {
	return [...]string{"all if last", "all", "less by the state", "less by a high-water mark", "all if the instant is the same"}[c]
}

// Returning is what n permits give back that were taken and not used.
type Returning int

const (
	// Exact gives back what the bucket has not refilled while the permits were held,
	// max(0, n − rate × held), and nothing while permits are promised: waiting callers have
	// their instants already, and a later call would get the same ones.
	Exact Returning = iota
	// ExactAnyway gives back max(0, n − rate × held) in front of waiting callers, too.
	ExactAnyway
	// Full gives back n.
	Full
)

func (r Returning) String() string { return [...]string{"exact", "exact while others wait", "full"}[r] }

// Rules are what a search is about.
type Rules struct {
	Permit  int      // units
	Buckets []Bucket // that share the key
	Cancel  Cancelling
	Return  Returning

	// Unmarked is true if a state does not say until when permits are promised, so that a
	// bucket of another rate repays the debt at its own rate.
	Unmarked bool

	// Reuse is true if a reservation may get the instant of a cancel that waits.
	Reuse bool

	// Which calls a history may hold, beside taking permits.
	Reserving, Returns, Settling, Clock, Losses bool

	Longest int // ticks that a reservation waits at most
	Pause   int // ticks that pass at most between two calls
	Calls   int
}

// limit is the units that may have been used beyond what the fastest rate restored.
func (r *Rules) limit() int {
	most := 0
	for _, b := range r.Buckets {
		most = max(most, b.Burst)
	}
	// An instant is rounded up to a tick, so that permits are used up to a tick late.
	return most*r.Permit + r.fastest() - 1
}

func (r *Rules) fastest() int {
	most := 0
	for _, b := range r.Buckets {
		most = max(most, b.Flow)
	}
	return most
}
