package report

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"time"

	"github.com/tryacquire/ratelimit/internal/page"
)

//go:embed assets/report.html
var reportHTML string

//go:embed assets/report.css
var reportCSS string

//go:embed assets/report.js
var reportJS string

var parsed = template.Must(template.New("report").Funcs(template.FuncMap{
	"text":    shown,
	"number":  number,
	"percent": percent,
	"stamp":   stamp,
	"took":    func(d time.Duration) string { return d.Round(time.Millisecond).String() },
	"percentWidth": func(part, whole int) string {
		return strconv.FormatFloat(100*float64(part)/float64(max(whole, 1)), 'f', 2, 64)
	},
}).Parse(reportHTML))

// Write writes the report as one page of HTML that loads nothing and runs no script but its own.
func Write(w io.Writer, d Data) error {
	p, err := newDocument(d)
	if err != nil {
		return err
	}
	var out bytes.Buffer // an error leaves half a page nowhere
	if err := parsed.Execute(&out, p); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	_, err = w.Write(out.Bytes())
	return err
}

// A document is what the template needs.
type document struct {
	Data
	Style   template.CSS
	Script  template.JS
	Allowed string // the only script that a browser runs, as in a policy of CSP
	Tables  []tallyTable
	Chart   chart
	Zoned   string // the name of the time zone
	Width   string // of a bucket, in words
}

// A tallyTable is the keys denied most, or minutes.
type tallyTable struct {
	ID, Title, What string
	Rows            []Tally
	Minutes         bool
	Beyond          int
	Others          string // what those beyond are called
}

// A chart is the requests over time, as the script reads them.
type chart struct {
	Zone   string   `json:"zone"`
	Times  []string `json:"times"` // of the buckets, for the table
	X      []int64  `json:"x"`     // the same in seconds, shifted so that UTC shows the log's time of day
	Total  []int    `json:"total"`
	Denied [][]int  `json:"denied"` // by limit
	Labels []string `json:"labels"`
}

func newDocument(d Data) (document, error) {
	for _, tallies := range [][]Tally{d.KeysDenied, d.MinutesDenied, d.MinutesBusiest} {
		for _, t := range tallies {
			if len(t.Denied) != len(d.Limits) {
				return document{}, fmt.Errorf("report: a tally has denials of %d limits, and there are %d", len(t.Denied), len(d.Limits))
			}
		}
	}
	if d.Zone == nil {
		d.Zone = time.UTC
	}
	script := page.JS() + reportJS
	digest := sha256.Sum256([]byte(script))
	p := document{
		Data:    d,
		Style:   template.CSS(page.CSS() + reportCSS),
		Script:  template.JS(script),
		Allowed: "'sha256-" + base64.StdEncoding.EncodeToString(digest[:]) + "'",
		Zoned:   d.First.In(d.Zone).Format("UTC-07:00"),
		Width:   inWords(d.BucketWidth),
		Tables: []tallyTable{
			{"keys", "The " + shown(d.KeyNames) + " denied most", shown(d.KeyName), d.KeysDenied, false, d.KeysBeyond, "more were denied"},
			{"denied", "The minutes with the most denials", "minute", d.MinutesDenied, true, d.MinutesDeniedBeyond, "more minutes had denials"},
			{"busiest", "The busiest minutes", "minute", d.MinutesBusiest, true, d.MinutesBusiestBeyond, "more minutes had requests"},
		},
	}
	for _, l := range d.Limits {
		p.Chart.Labels = append(p.Chart.Labels, shown(l.Label))
	}
	return p, p.chart()
}

// chart fills in the requests over time.
func (p *document) chart() error {
	p.Chart.Zone = p.Zoned
	p.Chart.Denied = make([][]int, len(p.Limits))
	if len(p.Buckets) == 0 {
		return nil
	}
	_, offset := p.Buckets[0].Begin.In(p.Zone).Zone() // one for all: the axis goes on in an hour that comes twice
	for _, b := range p.Buckets {
		if len(b.Denied) != len(p.Limits) {
			return fmt.Errorf("report: a bucket has denials of %d limits, and there are %d", len(b.Denied), len(p.Limits))
		}
		p.Chart.X = append(p.Chart.X, b.Begin.Unix()+int64(offset))
		p.Chart.Times = append(p.Chart.Times, b.Begin.In(p.Zone).Format(time.DateTime))
		p.Chart.Total = append(p.Chart.Total, b.Requests)
		for i, denied := range b.Denied {
			p.Chart.Denied[i] = append(p.Chart.Denied[i], denied)
		}
	}
	return nil
}
