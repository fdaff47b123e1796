package calendars

import (
	"testing"
	"time"
	_ "time/tzdata" // so that the zones are those of the toolchain, on every machine

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/exact"
)

func daily(loc *time.Location) Calendar { return Calendar{Every: Daily, Loc: loc} }

func weekly(first time.Weekday, loc *time.Location) Calendar {
	return Calendar{Every: Weekly, First: first, Loc: loc}
}

func monthly(day int, loc *time.Location) Calendar {
	return Calendar{Every: Monthly, Day: day, Loc: loc}
}

// TestWhereWindowsBegin: each window by its first instant and its length.
func TestWhereWindowsBegin(t *testing.T) {
	zone := func(name string) *time.Location {
		loc, err := time.LoadLocation(name)
		require.NoError(t, err)
		return loc
	}
	const h, day = time.Hour, 24 * time.Hour
	for _, test := range []struct {
		about    string
		calendar Calendar
		at       string // an instant in the first of the windows
		begin    string
		lasts    []time.Duration // this one's, and the next ones'
	}{
		{"days in UTC", daily(time.UTC), "2026-03-01T23:59:59.999999Z", "2026-03-01T00:00:00Z", []time.Duration{day, day, day}},
		{"a day of 23 hours", daily(zone("Europe/Berlin")), "2026-03-28T12:00:00Z", "2026-03-27T23:00:00Z", []time.Duration{day, 23 * h, day}},
		{"a day of 25 hours", daily(zone("Europe/Berlin")), "2026-10-24T12:00:00Z", "2026-10-23T22:00:00Z", []time.Duration{day, 25 * h, day}},
		{"the last microsecond of it", daily(zone("Europe/Berlin")), "2026-10-25T22:59:59.999999Z", "2026-10-24T22:00:00Z", []time.Duration{25 * h, day}},
		{"midnight does not exist: São Paulo sets its clocks from 0:00 to 1:00", daily(zone("America/Sao_Paulo")),
			"2018-11-03T12:00:00Z", "2018-11-03T03:00:00Z", []time.Duration{day, 23 * h, day}},
		{"23:00 comes twice, and the day is the one before: São Paulo", daily(zone("America/Sao_Paulo")),
			"2018-02-18T02:30:00Z", "2018-02-17T02:00:00Z", []time.Duration{25 * h, day}},
		{"midnight comes twice: Havana sets its clocks from 1:00 to 0:00", daily(zone("America/Havana")),
			"2025-11-02T05:30:00Z", "2025-11-02T04:00:00Z", []time.Duration{25 * h, day}},
		{"half an hour of daylight saving", daily(zone("Australia/Lord_Howe")), "2026-04-04T20:00:00Z", "2026-04-04T13:00:00Z",
			[]time.Duration{day + h/2, day}},
		{"half an hour of offset", daily(zone("Asia/Kolkata")), "2026-01-01T18:29:59Z", "2025-12-31T18:30:00Z", []time.Duration{day, day}},
		{"three quarters of one", daily(zone("Asia/Kathmandu")), "2026-01-01T18:15:00Z", "2026-01-01T18:15:00Z", []time.Duration{day, day}},
		{"a date that was left out: Samoa crossed the date line", daily(zone("Pacific/Apia")), "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z",
			[]time.Duration{day, day, day}},
		{"a year's end", daily(zone("Pacific/Kiritimati")), "2026-12-31T09:59:59Z", "2026-12-30T10:00:00Z", []time.Duration{day, day}},
		{"weeks from Monday", weekly(time.Monday, time.UTC), "2026-11-22T23:59:59Z", "2026-11-16T00:00:00Z", []time.Duration{7 * day, 7 * day}},
		{"weeks from Sunday", weekly(time.Sunday, time.UTC), "2026-11-22T00:00:00Z", "2026-11-22T00:00:00Z", []time.Duration{7 * day, 7 * day}},
		{"weeks from Saturday over a year's end", weekly(time.Saturday, time.UTC), "2027-01-01T12:00:00Z", "2026-12-26T00:00:00Z", []time.Duration{7 * day, 7 * day}},
		{"a week of 167 hours", weekly(time.Monday, zone("Europe/Berlin")), "2026-03-25T12:00:00Z", "2026-03-22T23:00:00Z", []time.Duration{167 * h, 7 * day}},
		{"a week of 169 hours", weekly(time.Monday, zone("America/New_York")), "2026-11-01T12:00:00Z", "2026-10-26T04:00:00Z", []time.Duration{169 * h, 7 * day}},
		{"months", monthly(1, time.UTC), "2026-01-31T23:59:59Z", "2026-01-01T00:00:00Z", []time.Duration{31 * day, 28 * day, 31 * day}},
		{"a leap year", monthly(1, time.UTC), "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", []time.Duration{29 * day, 31 * day}},
		{"no leap year", monthly(29, time.UTC), "2100-02-28T00:00:00Z", "2100-02-28T00:00:00Z", []time.Duration{29 * day, 31 * day}},
		{"the last day of each month", monthly(31, time.UTC), "2026-01-31T00:00:00Z", "2026-01-31T00:00:00Z", []time.Duration{28 * day, 31 * day, 30 * day}},
		{"just before a month's last day", monthly(31, time.UTC), "2026-02-27T23:59:59Z", "2026-01-31T00:00:00Z", []time.Duration{28 * day, 31 * day}},
		{"day 30 in a leap year", monthly(30, time.UTC), "2028-02-29T00:00:00Z", "2028-02-29T00:00:00Z", []time.Duration{30 * day, 31 * day}},
		{"a billing day over a year's end", monthly(15, time.UTC), "2027-01-14T23:59:59Z", "2026-12-15T00:00:00Z", []time.Duration{31 * day, 31 * day}},
		{"a month with a day of 23 hours", monthly(1, zone("Europe/Berlin")), "2026-03-15T12:00:00Z", "2026-02-28T23:00:00Z", []time.Duration{31*day - h, 30 * day}},
		{"a zone of 14 hours, in another month than UTC", monthly(1, zone("Pacific/Kiritimati")), "2026-01-31T10:00:00Z", "2026-01-31T10:00:00Z", []time.Duration{28 * day}},
		{"an offset that no zone has", daily(time.FixedZone("", 100*3600)), "2026-01-01T00:00:00Z", "2025-12-31T20:00:00Z", []time.Duration{day, day}},
	} {
		at, err := time.Parse(time.RFC3339Nano, test.at)
		require.NoError(t, err)
		begins := test.calendar.Around(at.UnixMicro())
		require.Equal(t, test.begin, time.UnixMicro(begins[1]).UTC().Format(time.RFC3339Nano), test.about)
		for i, lasts := range test.lasts {
			require.Equal(t, lasts, exact.Duration(begins[i+2]-begins[i+1]), "%s: window %d", test.about, i)
		}
		// The same windows are found from any instant in them.
		require.Equal(t, begins, test.calendar.Around(begins[1]), test.about)
		require.Equal(t, begins, test.calendar.Around(begins[2]-1), test.about)
		next, previous := test.calendar.Around(begins[2]), test.calendar.Around(begins[0])
		require.Equal(t, begins[1:], next[:4], test.about)
		require.Equal(t, begins[:4], previous[1:], test.about)
	}
}

// Without a year in which it would not end: ZoneBounds has such.
func TestWindowsOfEveryYear(t *testing.T) {
	for _, name := range []string{"America/Asuncion", "Africa/Cairo", "Pacific/Chatham", "Antarctica/Troll", "Australia/Lord_Howe", "Europe/Berlin", "America/Santiago"} {
		loc, err := time.LoadLocation(name)
		require.NoError(t, err)
		day, month := daily(loc), monthly(31, loc)
		for at := int64(0); at < 2*exact.Micros; {
			begins := month.Around(at)
			require.LessOrEqual(t, begins[1], at)
			require.Less(t, at, begins[2])
			days := day.Around(begins[2])
			require.Equal(t, begins[2], days[1], "a month begins with a day")
			at = begins[2]
		}
	}
}

func TestWindowsDoNotBeginBefore1970(t *testing.T) {
	day := (24 * time.Hour).Microseconds()
	require.Equal(t, [5]int64{0, 0, day, 2 * day, 3 * day}, daily(time.UTC).Around(0))
	require.Equal(t, [5]int64{0, 0, 4 * day, 11 * day, 18 * day}, weekly(time.Monday, time.UTC).Around(1))
	c := Windows{Calendar: daily(time.UTC)}
	require.Equal(t, c.Around(0), c.Around(-1), "a clock before 1970")
	require.Equal(t, c.Around(2*exact.Micros), c.Around(1<<62), "a clock after 2112")
}
