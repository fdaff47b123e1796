package ratelimit

// What users may pass each type as.
var (
	_ []Limiter = []Limiter{
		(*FixedWindow)(nil), (*CalendarWindow)(nil), (*SlidingWindow)(nil), (*SlidingLog)(nil), (*TokenBucket)(nil), (*LeakyBucket)(nil), (*FairTokenBucket)(nil), (*Pause)(nil),
		(*LocalTokenBucket)(nil), (*All)(nil), (*Choice)(nil), (*DenyCache)(nil), (*Fallback)(nil), (*Leased)(nil), (*Shadow)(nil), (*Bans)(nil),
	}
	_ []Settler = []Settler{
		(*FixedWindow)(nil), (*CalendarWindow)(nil), (*SlidingWindow)(nil), (*SlidingLog)(nil), (*TokenBucket)(nil), (*LeakyBucket)(nil), (*FairTokenBucket)(nil), (*Pause)(nil),
		(*LocalTokenBucket)(nil), (*Choice)(nil), (*DenyCache)(nil), (*Fallback)(nil), (*Leased)(nil), (*Shadow)(nil), (*Bans)(nil),
	}
	_ []partialTaker = []partialTaker{
		(*FixedWindow)(nil), (*CalendarWindow)(nil), (*SlidingWindow)(nil), (*SlidingLog)(nil), (*TokenBucket)(nil), (*LeakyBucket)(nil), (*FairTokenBucket)(nil), (*Pause)(nil),
		(*LocalTokenBucket)(nil), (*Choice)(nil), (*DenyCache)(nil), (*Fallback)(nil), (*Leased)(nil), (*Shadow)(nil), (*Bans)(nil),
	}
	_ []Holder = []Holder{(*InFlight)(nil), (*LocalInFlight)(nil), (*holdFallback)(nil), (*holdChoice)(nil)}
)
