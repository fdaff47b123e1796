package chart

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// wellFormed fails the test unless the document can be parsed, and returns its
// texts.
func wellFormed(t *testing.T, svg string) []string {
	t.Helper()
	require.NotContains(t, svg, "NaN")
	require.NotContains(t, svg, "Inf")
	var texts []string
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return texts
		}
		require.NoError(t, err, svg)
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
		require.Contains(t, texts, want)
	}
	require.NotContains(t, texts, "not measured")
}

func TestPlot(t *testing.T) {
	texts := wellFormed(t, Plot{Title: "t", X: "keys", Y: "µs", Series: []Series{
		{"rising", []Point{{1, 2}, {10, 20}, {1000, 35}}},
		{"gone", []Point{{0, 1}, {5, math.NaN()}}},
		{"alone", []Point{{10, 4}}},
	}}.SVG())
	for _, want := range []string{"rising: 35", "alone: 4", "keys", "µs"} {
		require.Contains(t, texts, want)
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
		got := c.in.round()
		require.InEpsilon(t, c.want.low, got.low, 1e-9, "%v", c.in)
		require.InEpsilon(t, c.want.high, got.high, 1e-9, "%v", c.in)
	}
}

func TestAxisTicks(t *testing.T) {
	require.Equal(t, []float64{1, 2, 5, 10, 20}, (axis{1, 20}).ticks())
	require.Len(t, (axis{1, 1e6}).ticks(), 7, "the decades")
}

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.58: "0.58", 7: "7", 7.25: "7.25", 12.34: "12.3", 100: "100", 999: "999",
		84_000: "84k", 177_500: "178k", 1_590_000: "1.59M", 2e9: "2G",
	} {
		require.Equal(t, want, short(v), "short(%v)", v)
	}
}
