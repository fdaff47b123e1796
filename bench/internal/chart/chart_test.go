package chart

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
)

// wellFormed fails the test unless the document can be parsed, and returns its
// texts.
func wellFormed(t *testing.T, svg string) []string {
	t.Helper()
	if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Errorf("not a number in %s", svg)
	}
	var texts []string
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return texts
		}
		if err != nil {
			t.Fatalf("%v in %s", err, svg)
		}
		if data, ok := token.(xml.CharData); ok && strings.TrimSpace(string(data)) != "" {
			texts = append(texts, string(data))
		}
	}
}

func TestBars(t *testing.T) {
	texts := wellFormed(t, Bars(`A <"title"> & more`, []string{"ours", "others"},
		Panel{Title: "one", Bars: []Bar{
			{Label: "a", Value: 1_590_000, Note: "20 ×", Bold: true},
			{Label: "b", Value: 84_000, Group: 1},
			{Label: "not measured", Value: math.NaN()},
			{Label: "nothing", Value: 0, Group: 99},
		}}, Panel{Title: "empty"}))
	for _, want := range []string{`A <"title"> & more`, "1.59M (20 ×)", "84k", "empty", "others"} {
		if !slices.Contains(texts, want) {
			t.Errorf("no %q in %q", want, texts)
		}
	}
	if slices.Contains(texts, "not measured") {
		t.Error("a bar that was not measured is there")
	}
}

func TestPlot(t *testing.T) {
	texts := wellFormed(t, Plot{Title: "t", X: "keys", Y: "µs", Series: []Series{
		{"rising", []Point{{1, 2}, {10, 20}, {1000, 35}}},
		{"gone", []Point{{0, 1}, {5, math.NaN()}}},
		{"alone", []Point{{10, 4}}},
	}}.SVG())
	for _, want := range []string{"rising: 35", "alone: 4", "keys", "µs"} {
		if !slices.Contains(texts, want) {
			t.Errorf("no %q in %q", want, texts)
		}
	}
}

func TestPlotWithoutPoints(t *testing.T) {
	wellFormed(t, Plot{Title: "t"}.SVG())
	wellFormed(t, Plot{Title: "t", Series: []Series{{"one", []Point{{1, 1}}}}}.SVG())
}

func TestAxisSpansAtLeastADecade(t *testing.T) {
	for _, c := range []struct{ in, want axis }{
		{axis{3, 4}, axis{2, 20}},
		{axis{1, 1}, axis{1, 10}},
		{axis{0.03, 700}, axis{0.02, 1000}},
	} {
		if got := c.in.round(); math.Abs(got.low/c.want.low-1) > 1e-9 || math.Abs(got.high/c.want.high-1) > 1e-9 {
			t.Errorf("%v becomes %v, want %v", c.in, got, c.want)
		}
	}
}

func TestAxisTicks(t *testing.T) {
	if got := (axis{1, 20}).ticks(); !slices.Equal(got, []float64{1, 2, 5, 10, 20}) {
		t.Errorf("got %v", got)
	}
	if got := (axis{1, 1e6}).ticks(); len(got) != 7 {
		t.Errorf("got %v, want the decades", got)
	}
}

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.58: "0.58", 7: "7", 7.25: "7.25", 12.34: "12.3", 100: "100", 999: "999",
		84_000: "84k", 177_500: "178k", 1_590_000: "1.59M", 2e9: "2G",
	} {
		if got := short(v); got != want {
			t.Errorf("short(%v) = %q, want %q", v, got, want)
		}
	}
}
