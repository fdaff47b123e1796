// Command pictures draws what each algorithm allows and denies of the same traffic, and what tenants
// get that share a limit, for docs/choosing.md and the README, and what slices waste, for docs/leases.md:
//
//	go run . -out .
//
// Each picture is a run of the real limiters, on an embedded Redis whose clock follows the traffic,
// so the same code always draws the same picture. That of slices is of recorded runs (leases.csv). TestPicturesAreCheckedIn says when a picture in
// this folder is not what the limiters do now.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tryacquire/ratelimit/internal/chart"
)

func main() {
	out := flag.String("out", ".", "the folder for the pictures")
	flag.Parse()
	if err := run(context.Background(), *out); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string) error {
	for name, draw := range pictures() {
		svg, err := draw(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".svg"), svg, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// pictures draws each picture.
func pictures() map[string]func(context.Context) ([]byte, error) {
	all := map[string]func(context.Context) ([]byte, error){"neighbour": neighbourPicture, "leases": leasesPicture}
	for _, s := range scenes() {
		all[s.name] = s.picture
	}
	return all
}

// picture is the SVG of a scene.
func (s scene) picture(ctx context.Context) ([]byte, error) {
	picture := chart.Events{Title: s.title, Length: s.length}
	for _, n := range s.notes {
		picture.Notes = append(picture.Notes, chart.Note{From: n.from, To: n.to, Text: n.text})
	}
	for _, c := range s.limits[1:] {
		picture.Marks = append(picture.Marks, c.at)
	}
	var words []string
	for _, a := range algorithms() {
		answers, err := replay(ctx, a, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
		row := a.row(s, answers)
		picture.Rows = append(picture.Rows, row)
		words = append(words, fmt.Sprintf("%s: %s, %s", row.Name, row.Result, row.Conclusion))
	}
	picture.Text = strings.Join(words, "; ") + "."
	return []byte(picture.SVG()), nil
}

func (a algorithm) row(s scene, answers []answer) chart.EventRow {
	r := chart.EventRow{
		Name: a.name, Detail: fmt.Sprintf(a.rule, s.limitInWords()), EndsAre: "window ends",
		Result: fmt.Sprintf("%d of %d allowed", allowed(answers), len(answers)), Conclusion: fmt.Sprintf("at most %d in any 10 s", most(answers)),
	}
	for _, one := range answers {
		r.Events = append(r.Events, chart.Event{At: one.at, Allowed: one.allowed})
		if a.boundaries {
			r.Ends = append(r.Ends, one.reset)
		}
	}
	slices.Sort(r.Ends)
	r.Ends = slices.Compact(r.Ends)
	return r
}
