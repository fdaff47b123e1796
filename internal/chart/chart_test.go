package chart

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

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

func TestEvents(t *testing.T) {
	svg := Events{
		Title: "t", Text: "what is seen", Length: 20 * time.Second,
		Notes: []Note{{0, 10 * time.Second, "a note"}}, Marks: []time.Duration{5 * time.Second},
		Rows: []EventRow{{
			Name: "<rule>", Detail: "in words", Result: "2 of 3", Conclusion: "so it is",
			Events: []Event{{0, true}, {time.Second / 2, false}, {2 * time.Second, true}},
			Ends:   []time.Duration{10 * time.Second, 20 * time.Second}, EndsAre: "it ends",
		}, {Name: "none"}},
	}.SVG()
	texts := wellFormed(t, svg)
	for _, want := range []string{"t. what is seen", "a note", "<rule>", "in words", "2 of 3", "so it is", "0 s", "20"} {
		require.Contains(t, texts, want)
	}
	require.Equal(t, 1, strings.Count(svg, ">it ends<"), "the other is not in the picture")
	const width = "M214.8 107.6h25.4v4.4h-25.4z" // of a second, in the first row
	require.Contains(t, svg, `<path class="allowed" d="`+width+`M268.8 107.6h25.4v4.4h-25.4z"/>`)
	require.Contains(t, svg, `<path class="denied" d="M215.3 102.7h24.4v3.4h-24.4z"/>`, "above what was allowed in the same second")
}
