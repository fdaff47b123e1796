package main

import (
	"fmt"
	"image/color"
	"slices"
	"time"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A row is what one algorithm did.
type row struct {
	algorithm
	answers []answer
}

// Distances in pixels, from the top and from the left.
const (
	width      vg.Length = 880
	left       vg.Length = 196 // of the plots; the algorithms are named before it
	right      vg.Length = 146 // behind the plots, for the counts
	margin     vg.Length = 12
	top        vg.Length = 72
	bottom     vg.Length = 44
	rowGap     vg.Length = 22
	brick      vg.Length = 4.4     // the height of one request
	pitch      vg.Length = 5.4     // from one request to that above it
	bin                  = seconds // the requests of so long are one column
	tickPeriod           = 5       // seconds
)

// draw draws a row below the other, each over the same axis of time. A request is a brick in the
// column of its second: filled if it was allowed, an outline above those if it was denied.
func draw(s scene, rows []row) ([]byte, error) {
	highest := 0
	for _, column := range columns(rows[0].answers) {
		highest = max(highest, len(column.allowed))
	}
	rowHeight := max(vg.Length(highest)*pitch+2, 40)
	height := top + bottom + vg.Length(len(rows))*(rowHeight+rowGap) - rowGap
	svg := vgsvg.NewWith(vgsvg.UseWH(width, height))
	page := vgdraw.New(svg)
	write(page, margin, height-22, 15, ink, true, vgdraw.XLeft, s.title)
	legend(page, height-43)

	for i, r := range rows {
		base := height - top - vg.Length(i)*(rowHeight+rowGap) - rowHeight
		middle := base + min(rowHeight/2, 30)
		write(page, margin, middle+3, 13, ink, true, vgdraw.XLeft, r.name)
		write(page, margin, middle-13, 11, soft, false, vgdraw.XLeft, fmt.Sprintf(r.rule, s.limitInWords()))
		write(page, width-right+12, middle+3, 13, allow, true, vgdraw.XLeft, fmt.Sprintf("%d of %d allowed", allowed(r.answers), len(r.answers)))
		write(page, width-right+12, middle-13, 11, soft, false, vgdraw.XLeft, fmt.Sprintf("at most %d in any 10 s", most(r.answers)))

		p := plot.New()
		p.BackgroundColor = nil // the page shows through
		p.HideAxes()
		p.X.Min, p.X.Max = 0, s.length.Seconds()
		p.Y.Min, p.Y.Max = 0, 1
		p.X.Padding, p.Y.Padding = 0, 0
		p.Add(requests{r, s, i == 0})
		p.Draw(vgdraw.Canvas{Canvas: svg, Rectangle: vg.Rectangle{Min: vg.Point{X: left, Y: base}, Max: vg.Point{X: width - right, Y: base + rowHeight}}})
	}
	axis(page, s.length)
	return themed(svg, s.title+". "+inWords(rows))
}

// requests is the plotter of a row.
type requests struct {
	row
	scene
	first bool
}

// Plot implements plot.Plotter.
func (r requests) Plot(c vgdraw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&c)
	at := func(d time.Duration) vg.Length { return x(d.Seconds()) }
	c.StrokeLine2(vgdraw.LineStyle{Color: line, Width: 1}, c.Min.X, c.Min.Y, c.Max.X, c.Min.Y)
	for _, change := range r.limits[1:] {
		c.StrokeLine2(vgdraw.LineStyle{Color: soft, Width: 1}, at(change.at), c.Min.Y, at(change.at), c.Max.Y+4)
	}
	if r.boundaries {
		for _, end := range ends(r.answers) {
			if end < r.length {
				c.StrokeLine2(vgdraw.LineStyle{Color: soft, Width: 1, Dashes: []vg.Length{3, 3}}, at(end), c.Min.Y, at(end), c.Max.Y+2)
				write(c, at(end), c.Max.Y+5, 10, soft, false, vgdraw.XCenter, "window ends")
			}
		}
	}
	if r.first {
		for _, n := range r.notes {
			write(c, (at(n.from)+at(n.to))/2, c.Max.Y+7, 11, soft, false, vgdraw.XCenter, n.text)
		}
	}
	for _, column := range columns(r.answers) {
		left, right := at(column.at)+.8, at(column.at+bin)-.8
		for i, allowed := range column.allowed {
			bottom := c.Min.Y + 1.5 + vg.Length(i)*pitch
			if allowed {
				c.FillPolygon(allow, rectangle(left, bottom, right, bottom+brick))
				continue
			}
			const edge = .5 // half of the outline's width
			outline := rectangle(left+edge, bottom+edge, right-edge, bottom+brick-edge)
			c.StrokeLines(vgdraw.LineStyle{Color: deny, Width: 2 * edge}, outline)
		}
	}
}

// rectangle is closed, so that its outline is.
func rectangle(left, bottom, right, top vg.Length) []vg.Point {
	return []vg.Point{{X: left, Y: bottom}, {X: right, Y: bottom}, {X: right, Y: top}, {X: left, Y: top}, {X: left, Y: bottom}}
}

// A column is the requests of one bin, those that were allowed first.
type column struct {
	at      time.Duration
	allowed []bool
}

func columns(answers []answer) []column {
	var all []column
	for _, a := range answers {
		at := a.at.Truncate(bin)
		if len(all) == 0 || all[len(all)-1].at != at {
			all = append(all, column{at: at})
		}
		last := &all[len(all)-1]
		if a.allowed {
			last.allowed = slices.Insert(last.allowed, 0, true)
		} else {
			last.allowed = append(last.allowed, false)
		}
	}
	return all
}

// ends are the instants at which windows end.
func ends(answers []answer) []time.Duration {
	var all []time.Duration
	for _, a := range answers {
		all = append(all, a.reset)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func legend(c vgdraw.Canvas, y vg.Length) {
	x := left
	for _, entry := range []struct {
		text    string
		allowed bool
	}{{"one request, allowed", true}, {"denied", false}} {
		square := rectangle(x, y+1, x+10, y+1+brick)
		tint := deny
		if entry.allowed {
			c.FillPolygon(allow, square)
			tint = allow
		} else {
			c.StrokeLines(vgdraw.LineStyle{Color: deny, Width: 1}, square)
		}
		write(c, x+15, y, 11, tint, true, vgdraw.XLeft, entry.text)
		x += 150
	}
}

// axis names the seconds below the last row.
func axis(c vgdraw.Canvas, length time.Duration) {
	plots := width - left - right
	for second := 0; second <= int(length/seconds); second += tickPeriod {
		x := left + plots*vg.Length(second)/vg.Length(length.Seconds())
		c.StrokeLine2(vgdraw.LineStyle{Color: line, Width: 1}, x, bottom, x, bottom-5)
		text := fmt.Sprint(second)
		if second == 0 {
			text = "0 s"
		}
		write(c, x, bottom-18, 11, soft, false, vgdraw.XCenter, text)
	}
}

// write writes one line, whose baseline is y.
func write(c vgdraw.Canvas, x, y, size vg.Length, tint color.Color, bold bool, align vgdraw.XAlignment, text string) {
	face := font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
	if bold {
		face.Weight = xfont.WeightBold
	}
	c.FillText(vgdraw.TextStyle{Color: tint, Font: face, XAlign: align, YAlign: vgdraw.YBottom, Handler: plot.DefaultTextHandler}, vg.Point{X: x, Y: y}, text)
}
