package main

import (
	"cmp"
	"os"
	"slices"
	"time"

	"github.com/tryacquire/ratelimit/cmd/ratelimit/internal/report"
)

// writePage writes the report as a page of HTML. A file that is there already is replaced.
func (r *findings) writePage(name string, took time.Duration) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(f.Close(), err) }()
	return report.Write(f, r.data(took))
}

// data is what the page shows.
func (r *findings) data(took time.Duration) report.Data {
	words := keyWords[r.cfg.key]
	d := report.Data{
		Title: "What the limits would have done", KeyName: words.one, KeyNames: words.many,
		Lines: r.requests + r.skipped, Requests: r.requests, Skipped: r.skipped, Keys: r.keys, Zone: r.location(),
		KeysBeyond: r.denied.beyond, MinutesDeniedBeyond: r.worst.beyond, MinutesBusiestBeyond: r.minutes.beyond,
		Samples: []report.Sample{}, Formats: []report.Format{}, Buckets: []report.Bucket{}, // none is [] in JSON
		KeysDenied: []report.Tally{}, MinutesDenied: []report.Tally{}, MinutesBusiest: []report.Tally{},
		Differ: r.differ, Took: took, Sweep: r.cfg.sweep,
	}
	for _, name := range r.cfg.files {
		if name == "-" {
			name = "standard input"
		}
		d.Sources = append(d.Sources, name)
	}
	for _, name := range r.formatNames() {
		d.Formats = append(d.Formats, report.Format{Name: name, Lines: r.formats[name]})
	}
	for _, s := range r.samples {
		d.Samples = append(d.Samples, report.Sample{Source: s.file, Line: s.number, Reason: s.err.Error(), Text: s.text})
	}
	for _, t := range r.truncated {
		d.Truncated = append(d.Truncated, report.Truncated{Source: t.file, Lines: t.lines})
	}
	labels := r.labels()
	for i, l := range r.cfg.limits {
		d.Limits = append(d.Limits, report.Limit{
			Label: labels[i], Text: l.String(), Flags: l.flags(), Allowed: r.allowed[i], Denied: r.requests - r.allowed[i], KeysDenied: r.keysDenied[i],
		})
	}
	if r.requests == 0 {
		return d
	}
	at := func(micros int64) time.Time { return time.UnixMicro(micros).In(d.Zone) }
	d.First, d.Last, d.BucketWidth = at(r.first), at(r.last), time.Duration(r.width)*time.Microsecond
	denied := func(t tally) []int { return slices.Clone(t.denied) }
	for i, part := range r.parts {
		d.Buckets = append(d.Buckets, report.Bucket{Begin: at((r.first/r.width + int64(i)) * r.width), Requests: part.requests, Denied: denied(part)})
	}
	for _, t := range r.denied.items {
		d.KeysDenied = append(d.KeysDenied, report.Tally{Key: t.key, Requests: t.requests, Denied: denied(t)})
	}
	minutes := func(all []tally) []report.Tally {
		to := []report.Tally{}
		for _, t := range all {
			to = append(to, report.Tally{Minute: at(t.minute * time.Minute.Microseconds()), Requests: t.requests, Denied: denied(t)})
		}
		return to
	}
	d.MinutesDenied, d.MinutesBusiest = minutes(r.worst.items), minutes(r.minutes.items)
	return d
}
