// Command pictures draws what each algorithm allows and denies of the same traffic, for
// docs/choosing.md and the README:
//
//	go run . -out .
//
// Each picture is a run of the real limiters, on an embedded Redis whose clock follows the traffic,
// so the same code always draws the same picture. TestPicturesAreCheckedIn says when a picture in
// this folder is not what the limiters do now.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
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
	for _, s := range scenes() {
		svg, err := s.picture(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, s.name+".svg"), svg, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// picture is the SVG of a scene.
func (s scene) picture(ctx context.Context) ([]byte, error) {
	var rows []row
	for _, a := range algorithms() {
		answers, err := replay(ctx, a, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
		rows = append(rows, row{a, answers})
	}
	return draw(s, rows)
}
