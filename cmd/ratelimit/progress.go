package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// A progress is one line on a terminal that shows how far a long run has come.
// On a nil progress, which is for anything but a terminal, nothing is shown.
type progress struct {
	w       io.Writer
	now     func() time.Time
	quiet   time.Time // show nothing until then
	phase   time.Time // when the decisions began
	visible bool
}

// Short runs show nothing, long ones a few lines a second.
const (
	progressAfter = time.Second
	progressEvery = 250 * time.Millisecond
)

func newProgress(w io.Writer) *progress {
	return &progress{w: w, now: time.Now, quiet: time.Now().Add(progressAfter)}
}

// terminal reports whether f is a terminal.
func terminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (p *progress) show(format string, args ...any) {
	if p == nil || p.now().Before(p.quiet) {
		return
	}
	fmt.Fprintf(p.w, "\r\x1b[K"+format, args...)
	p.visible = true
	p.quiet = p.now().Add(progressEvery)
}

// showShare shows how many of all requests are done and how long the rest takes.
func (p *progress) showShare(done, all int) {
	if p == nil {
		return
	}
	if p.phase.IsZero() {
		p.phase = p.now() // the first batch is left out of the reckoning
	}
	rest := "…"
	if gone := p.now().Sub(p.phase); gone > progressAfter {
		left := time.Duration(float64(gone) / float64(done) * float64(all-done))
		rest = fmt.Sprintf(", about %v left", left.Round(time.Second))
	}
	p.show("replayed %s of %s requests (%s)%s", number(done), number(all), percent(done, all), rest)
}

// clear takes the line away.
func (p *progress) clear() {
	if p != nil && p.visible {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.visible = false
	}
}
