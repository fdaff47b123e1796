package limitertest

import (
	"time"
	_ "time/tzdata" // so that the zones are those of the toolchain, on every machine
)

// Zones are time zones with all that a calendar has to know: clocks set at 2:00, at 1:00 and
// at midnight, by half an hour and by two; quarters of an hour; none of that.
var Zones = zones("UTC", "Europe/Berlin", "Europe/London", "America/New_York", "America/Havana", "America/Asuncion",
	"America/Santiago", "America/St_Johns", "Atlantic/Azores", "Africa/Cairo", "Asia/Beirut", "Asia/Kolkata", "Asia/Kathmandu",
	"Australia/Lord_Howe", "Pacific/Chatham", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Antarctica/Troll")

// Zone is a time zone by its name.
func Zone(name string) *time.Location { return zones(name)[0] }

func zones(names ...string) (all []*time.Location) {
	for _, name := range names {
		loc, err := time.LoadLocation(name)
		if err != nil {
			panic(err)
		}
		all = append(all, loc)
	}
	return all
}
