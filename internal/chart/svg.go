// Package chart draws charts as SVG, readable on light and on dark pages, for the bench and for
// docs/pictures.
//
// It has no dependency. gonum/plot has none of these charts either (direct labels, bars with notes,
// events), writes one set of colours, so that a dark page needs its output rewritten, places texts
// by the widths of fonts that a reader may not have, and its fonts, TeX and PDF take longer to
// compile than most of CI's tests take to run.
package chart

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// colors can be distinguished by the colour-blind too (Okabe and Ito), and stand out
// from white and from black.
var colors = []string{"#0072b2", "#d55e00", "#888888", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8c6bb1"}

const style = `<style>
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #57606a }
.title { font-size: 16px; font-weight: 600; fill: #24292f }
.panel { font-size: 14px; font-weight: 600; fill: #24292f }
.ours { font-weight: 600; fill: #24292f }
.grid { stroke: #8c959f; stroke-opacity: .35; stroke-width: 1 }
.line { fill: none; stroke-width: 2; stroke-linejoin: round }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 }
  .title, .panel, .ours { fill: #f0f6fc }
}
</style>
`

// canvas collects elements.
type canvas struct {
	strings.Builder
	width, height float64
}

func (c *canvas) text(x, y float64, class, anchor, s string) {
	fmt.Fprintf(c, `<text x="%s" y="%s" class="%s" text-anchor="%s">%s</text>`+"\n", px(x), px(y), class, anchor, escape(s))
}

func (c *canvas) rect(x, y, w, h float64, color string) {
	fmt.Fprintf(c, `<rect x="%s" y="%s" width="%s" height="%s" rx="2" fill="%s"/>`+"\n", px(x), px(y), px(w), px(h), color)
}

func (c *canvas) rule(x1, y1, x2, y2 float64) {
	fmt.Fprintf(c, `<line x1="%s" y1="%s" x2="%s" y2="%s" class="grid"/>`+"\n", px(x1), px(y1), px(x2), px(y2))
}

// svg is the document. It has no background: the page shows through.
func (c *canvas) svg(title string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" width="%s" height="%s" role="img">`+"\n"+
		"<title>%s</title>\n", px(c.width), px(c.height), px(c.width), px(c.height), escape(title)) + style + c.String() + "</svg>\n"
}

func px(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;")

func escape(s string) string { return escaper.Replace(s) }

// short is a number as axes and bars have it: 1.59M, 84k, 0.58.
func short(v float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if math.Abs(v) >= unit.size {
			return digits(v/unit.size) + unit.name
		}
	}
	return digits(v)
}

func digits(v float64) string {
	decimals := 0
	switch a := math.Abs(v); {
	case a < 1:
		return strconv.FormatFloat(v, 'g', 2, 64)
	case a < 10:
		decimals = 2
	case a < 100:
		decimals = 1
	}
	s := strconv.FormatFloat(v, 'f', decimals, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}
