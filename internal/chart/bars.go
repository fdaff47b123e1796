package chart

import "math"

// A Panel is a group of bars on a scale of their own.
type Panel struct {
	Title string
	Bars  []Bar
}

// A Bar is drawn in the colour of its group, which is a small number. NaN draws
// none.
type Bar struct {
	Label string
	Value float64
	Note  string // after the value
	Group int
	Bold  bool
}

const (
	margin    = 16.0
	labelSide = 216.0
	noteSide  = 130.0
	barWidth  = 380.0
	barHeight = 17.0
	barPitch  = 23.0
)

// Bars draws the panels below one another. Each scale is linear and begins at 0.
// The legend names the groups.
func Bars(title string, legend []string, panels ...Panel) string {
	c := &canvas{width: margin + labelSide + barWidth + noteSide + margin}
	y := margin + 14
	c.text(margin, y, "title", "start", title)
	y += 24
	for group, name := range legend {
		x := margin + 170*float64(group)
		c.rect(x, y-10, 12, 12, colors[group%len(colors)])
		c.text(x+18, y, "plain", "start", name)
	}
	y += 8
	for _, p := range panels {
		y += 24
		c.text(margin, y, "panel", "start", p.Title)
		y += 10
		most := 0.0
		for _, b := range p.Bars {
			if !math.IsNaN(b.Value) {
				most = max(most, b.Value)
			}
		}
		for _, b := range p.Bars {
			if math.IsNaN(b.Value) {
				continue
			}
			class := "plain"
			if b.Bold {
				class = "ours"
			}
			base := y + barHeight - 4
			c.text(margin+labelSide-8, base, class, "end", b.Label)
			length := 1.0
			if most > 0 {
				length = max(b.Value/most*barWidth, 1)
			}
			c.rect(margin+labelSide, y, length, barHeight, colors[b.Group%len(colors)])
			note := short(b.Value)
			if b.Note != "" {
				note += " (" + b.Note + ")"
			}
			c.text(margin+labelSide+length+6, base, class, "start", note)
			y += barPitch
		}
	}
	c.height = y + margin
	return c.svg(title)
}
