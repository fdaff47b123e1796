package report

import (
	"fmt"
	"time"
)

// hostile are names that are markup, end the element that they stand in, or change how the text around
// them is read.
var hostile = []string{
	`<script>document.title = "owned"</script>`,
	`</script><img src=x onerror="document.title = 'owned'">`,
	`"><b onmouseover=alert(1)>x</b>`,
	`<!--<script>`,
	"{{.Title}} ${1+1} `x` \\u003cb\\u003e",
	"\x00\x1b[31m\xff\u202egpj.exe\u2066 line\nbreak",
	"javascript:alert(1)",
}

// newYork changes its offset while a day of sample goes on.
var newYork = func() *time.Location {
	zone, err := time.LoadLocation("America/New_York")
	if err != nil {
		panic(err)
	}
	return zone
}()

// sample is a replay of a day, with so many requests in so many buckets and under so many limits.
func sample(requests, buckets, limits int) Data {
	begin := time.Date(2026, 3, 2, 5, 0, 0, 0, time.UTC)
	d := Data{
		Title: "Replay of access.log", Sources: []string{"access.log", "access.log.1.gz"},
		Formats: []Format{{"combined", requests - 7}, {"vhost combined", 7}},
		KeyName: "client IP", KeyNames: "client IPs",
		Lines: requests + 12, Requests: requests, Skipped: 12,
		Samples: []Sample{{"access.log", 17, "it has no time in brackets", "GET / HTTP/1.1"}, {"access.log.1.gz", 4, "it is empty behind the client", hostile[1]}},
		First:   begin, Last: begin.Add(24*time.Hour - time.Second), Zone: newYork, Keys: 1234,
		BucketWidth: 24 * time.Hour / time.Duration(buckets), Took: 340 * time.Millisecond,
		KeysBeyond: 321, MinutesDeniedBeyond: 12, MinutesBusiestBeyond: 900,
	}
	for l := range limits {
		d.Limits = append(d.Limits, Limit{
			Label: fmt.Sprintf("%d/m burst %d", 10*(l+1), 20*(l+1)), Text: fmt.Sprintf("%d per minute, up to %d at once", 10*(l+1), 20*(l+1)),
			Flags: fmt.Sprintf("--algorithm token-bucket --rate %d/m --burst %d", 10*(l+1), 20*(l+1)),
		})
	}
	weight := func(i int) int { // the day is busier than the night, and two hours are busiest
		hour := 24 * i / buckets
		return 20 + hour*(24-hour) + (i*31)%17 + map[int]int{10: 200, 15: 340}[hour]
	}
	all := 0
	for i := range buckets {
		all += weight(i)
	}
	done, so := 0, 0
	for i := range buckets {
		so += weight(i)
		n := requests*so/all - done
		done += n
		b := Bucket{Begin: begin.Add(time.Duration(i) * d.BucketWidth), Requests: n}
		for l := range limits {
			denied := n * min(weight(i), 600) / 1200 / (l + 1)
			b.Denied = append(b.Denied, denied)
			d.Limits[l].Denied += denied
			d.Limits[l].KeysDenied = 340 - 10*l
		}
		d.Buckets = append(d.Buckets, b)
	}
	for l := range d.Limits {
		d.Limits[l].Allowed = requests - d.Limits[l].Denied
	}
	for i := range 25 {
		tally := Tally{Key: fmt.Sprintf("203.0.113.%d", i), Requests: 2000 - 70*i}
		minute := Tally{Minute: begin.Add(time.Duration(37*i) * time.Minute), Requests: 900 - 20*i}
		for l := range limits {
			tally.Denied = append(tally.Denied, (1500-60*i)/(l+1))
			minute.Denied = append(minute.Denied, (700-25*i)/(l+1))
		}
		d.KeysDenied = append(d.KeysDenied, tally)
		d.MinutesDenied = append(d.MinutesDenied, minute)
		d.MinutesBusiest = append(d.MinutesBusiest, minute)
	}
	return d
}

// withHostileNames has them wherever a text of a log or of the command line can stand.
func withHostileNames(d Data) Data {
	d.Title, d.KeyName, d.KeyNames = hostile[0], hostile[2], hostile[1]
	d.Sources = hostile
	for i, name := range hostile {
		d.KeysDenied[i].Key = name
		d.Formats = append(d.Formats, Format{name, 1})
		d.Samples = append(d.Samples, Sample{name, i, name, name})
	}
	for i := range d.Limits {
		d.Limits[i].Label = hostile[i%len(hostile)] + fmt.Sprint(i)
		d.Limits[i].Text, d.Limits[i].Flags = hostile[1], hostile[0]
	}
	return d
}
