package chart

import (
	"fmt"
	"strings"
	"time"
)

// Events draws what became of the same events under several rules: for each rule a row over the
// same axis of time, with a brick for each event in the column of its second, filled if it was
// allowed, and an outline above those if it was denied.
type Events struct {
	Title  string
	Text   string // the whole in words, for those who do not see it
	Length time.Duration
	Notes  []Note          // above the first row
	Marks  []time.Duration // lines through all rows
	Rows   []EventRow
}

// An EventRow is one rule.
type EventRow struct {
	Name, Detail       string // before the row
	Result, Conclusion string // behind it
	Events             []Event
	Ends               []time.Duration // dashed lines, above each EndsAre
	EndsAre            string
}

// An Event is one brick.
type Event struct {
	At      time.Duration
	Allowed bool
}

// A Note is written above the middle of a time.
type Note struct {
	From, To time.Duration
	Text     string
}

const (
	eventsWidth  = 900.0
	rowsLeft     = 214.0
	rowsRight    = eventsWidth - 146
	rowsTop      = 74.0
	rowGap       = 22.0
	lowestRow    = 40.0
	brickHeight  = 4.4
	brickPitch   = 5.4
	brickMargin  = .8
	tickDistance = 5 * time.Second
	column       = time.Second
)

const eventsStyle = `<style>
.small { font-size: 11px }
.name { font-weight: 600; fill: #24292f }
.allowed, .denied { fill: none; stroke-width: 1 }
path.allowed { fill: #0072b2 }
path.denied { stroke: #bc4c00 }
text.allowed { fill: #0072b2; font-weight: 600 }
text.denied { fill: #bc4c00; font-weight: 600 }
.mark { stroke: #57606a; stroke-width: 1 }
.end { stroke: #57606a; stroke-width: 1; stroke-dasharray: 3 3 }
@media (prefers-color-scheme: dark) {
  path.allowed, text.allowed { fill: #56b4e9 }
  path.denied { stroke: #f28b3c }
  text.denied { fill: #f28b3c }
  .mark, .end { stroke: #9198a1 }
  .name { fill: #f0f6fc }
}
</style>
`

// SVG draws the chart.
func (e Events) SVG() string {
	c := &canvas{width: eventsWidth}
	c.WriteString(eventsStyle)
	c.text(12, 24, "title", "start", e.Title)
	c.bricks("allowed", [][2]float64{{rowsLeft, 44}}, 10)
	c.text(rowsLeft+16, 50, "allowed small", "start", "one request, allowed")
	c.bricks("denied", [][2]float64{{rowsLeft + 160, 44}}, 10)
	c.text(rowsLeft+176, 50, "denied small", "start", "denied")

	x := func(at time.Duration) float64 {
		return rowsLeft + (rowsRight-rowsLeft)*at.Seconds()/e.Length.Seconds()
	}
	for _, n := range e.Notes {
		c.text((x(n.From)+x(n.To))/2, rowsTop-4, "small", "middle", n.Text)
	}
	top := rowsTop
	for _, r := range e.Rows {
		height := lowestRow
		for _, n := range heights(r.Events) {
			height = max(height, float64(n)*brickPitch+2)
		}
		e.row(c, r, x, top, top+height)
		top += height + rowGap
	}
	base := top - rowGap
	for at := time.Duration(0); at <= e.Length; at += tickDistance {
		c.rule(x(at), base, x(at), base+5)
		label := fmt.Sprint(int(at.Seconds()))
		if at == 0 {
			label = "0 s"
		}
		c.text(x(at), base+18, "small", "middle", label)
	}
	c.height = base + 28
	return c.svg(e.Title + ". " + e.Text)
}

func (e Events) row(c *canvas, r EventRow, x func(time.Duration) float64, top, base float64) {
	middle := max(base-30, (top+base)/2)
	c.text(12, middle, "name", "start", r.Name)
	c.text(12, middle+16, "small", "start", r.Detail)
	c.text(rowsRight+12, middle, "allowed", "start", r.Result)
	c.text(rowsRight+12, middle+16, "small", "start", r.Conclusion)
	c.rule(rowsLeft, base, rowsRight, base)
	for _, at := range e.Marks {
		c.vertical("mark", x(at), top-4, base)
	}
	for _, at := range r.Ends {
		if at < e.Length {
			c.vertical("end", x(at), top-2, base)
			c.text(x(at), top-5, "small", "middle", r.EndsAre)
		}
	}
	width := x(column) - x(0) - 2*brickMargin
	columns := map[time.Duration]int{}
	for _, kind := range []struct {
		class   string
		allowed bool
	}{{"allowed", true}, {"denied", false}} {
		var corners [][2]float64
		for _, event := range r.Events {
			if event.Allowed != kind.allowed {
				continue
			}
			at := event.At.Truncate(column)
			columns[at]++
			corners = append(corners, [2]float64{x(at) + brickMargin, base - 1 - float64(columns[at])*brickPitch})
		}
		c.bricks(kind.class, corners, width)
	}
}

// heights counts the events of each column.
func heights(events []Event) map[time.Duration]int {
	n := map[time.Duration]int{}
	for _, event := range events {
		n[event.At.Truncate(column)]++
	}
	return n
}

func (c *canvas) vertical(class string, x, top, base float64) {
	fmt.Fprintf(c, `<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`+"\n", px(x), px(top), px(x), px(base), class)
}

// bricks draws bricks in one path. corners are their upper left ones.
func (c *canvas) bricks(class string, corners [][2]float64, width float64) {
	if len(corners) == 0 {
		return
	}
	inset := 0.0
	if class == "denied" {
		inset = .5 // the outline is as large as what is filled
	}
	var d strings.Builder
	for _, at := range corners {
		fmt.Fprintf(&d, "M%s %sh%sv%sh-%sz", px(at[0]+inset), px(at[1]+inset), px(width-2*inset), px(brickHeight-2*inset), px(width-2*inset))
	}
	fmt.Fprintf(c, `<path class="%s" d="%s"/>`+"\n", class, d.String())
}
