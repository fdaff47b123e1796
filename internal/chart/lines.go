package chart

import (
	"fmt"
	"math"
	"strings"
)

// A Plot is lines over two logarithmic axes.
type Plot struct {
	Title, X, Y string
	Series      []Series
}

// A Series is one line. Points that are not above 0 are left out.
type Series struct {
	Name   string
	Points []Point
}

// A Point is a measurement.
type Point struct{ X, Y float64 }

const (
	plotLeft, plotTop     = 64.0, 64.0
	plotWidth, plotHeight = 460.0, 280.0
	legendSide            = 330.0
)

// SVG draws the plot.
func (p Plot) SVG() string {
	c := &canvas{width: plotLeft + plotWidth + legendSide + margin, height: plotTop + plotHeight + 56}
	c.text(margin, margin+14, "title", "start", p.Title)
	c.text(margin, plotTop-14, "plain", "start", p.Y)
	c.text(plotLeft+plotWidth/2, plotTop+plotHeight+42, "plain", "middle", p.X)

	xs, ys := p.axes()
	for _, v := range xs.ticks() {
		x := plotLeft + xs.place(v)*plotWidth
		c.rule(x, plotTop, x, plotTop+plotHeight)
		c.text(x, plotTop+plotHeight+20, "plain", "middle", short(v))
	}
	for _, v := range ys.ticks() {
		y := plotTop + plotHeight - ys.place(v)*plotHeight
		c.rule(plotLeft, y, plotLeft+plotWidth, y)
		c.text(plotLeft-8, y+4, "plain", "end", short(v))
	}
	for i, s := range p.Series {
		color := colors[i%len(colors)]
		var path []string
		last := Point{}
		for _, pt := range s.Points {
			if !(pt.X > 0 && pt.Y > 0) {
				continue
			}
			x, y := plotLeft+xs.place(pt.X)*plotWidth, plotTop+plotHeight-ys.place(pt.Y)*plotHeight
			path = append(path, px(x)+","+px(y))
			fmt.Fprintf(c, `<circle cx="%s" cy="%s" r="3" fill="%s"/>`+"\n", px(x), px(y), color)
			last = pt
		}
		if len(path) == 0 {
			continue
		}
		fmt.Fprintf(c, `<polyline class="line" stroke="%s" points="%s"/>`+"\n", color, strings.Join(path, " "))
		y := plotTop + 10 + float64(i)*22
		c.rect(plotLeft+plotWidth+20, y-9, 12, 12, color)
		c.text(plotLeft+plotWidth+40, y+2, "plain", "start", s.Name+": "+short(last.Y))
	}
	return c.svg(p.Title)
}

// An axis is logarithmic, from low to high.
type axis struct{ low, high float64 }

func (p Plot) axes() (x, y axis) {
	x, y = axis{math.Inf(1), 0}, axis{math.Inf(1), 0}
	for _, s := range p.Series {
		for _, pt := range s.Points {
			if pt.X > 0 && pt.Y > 0 {
				x.include(pt.X)
				y.include(pt.Y)
			}
		}
	}
	if x.high == 0 {
		return axis{1, 10}, axis{1, 10}
	}
	if x.low == x.high {
		x.high *= 10
	}
	return x, y.round()
}

func (a *axis) include(v float64) { a.low, a.high = min(a.low, v), max(a.high, v) }

// round widens the axis to marks at which it begins and ends, and to a decade at
// least, so that noise does not look like growth.
func (a axis) round() axis {
	a.low, a.high = markBelow(a.low), markAbove(a.high)
	if a.high < a.low*10 {
		a.high = a.low * 10
	}
	return a
}

var marks = []float64{1, 2, 5, 10}

func markBelow(v float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(v)))
	best := decade
	for _, m := range marks {
		if m*decade <= v*(1+1e-9) {
			best = m * decade
		}
	}
	return best
}

func markAbove(v float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range marks {
		if m*decade >= v*(1-1e-9) {
			return m * decade
		}
	}
	return 10 * decade
}

func (a axis) place(v float64) float64 {
	return math.Log(v/a.low) / math.Log(a.high/a.low)
}

// ticks are 1, 2 and 5 of each decade, or the decades only where there are many.
func (a axis) ticks() []float64 {
	steps := []float64{1, 2, 5}
	if a.high > a.low*300 {
		steps = steps[:1]
	}
	var ticks []float64
	for e := math.Floor(math.Log10(a.low)); e <= math.Ceil(math.Log10(a.high)); e++ {
		for _, s := range steps {
			if v := s * math.Pow(10, e); v >= a.low*(1-1e-9) && v <= a.high*(1+1e-9) {
				ticks = append(ticks, v)
			}
		}
	}
	return ticks
}
