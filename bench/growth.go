package main

import (
	"context"
	"fmt"
	"math"

	"github.com/tryacquire/ratelimit/internal/chart"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// grow measures the curves, and draws and tabulates them.
func grow(ctx context.Context, h *host, o options) error {
	server := redistest.Start(h)
	b, err := newTestbed(h, server, server.Addr())
	if err != nil {
		return err
	}
	where, err := setting(ctx, b.admin, o)
	if err != nil {
		return err
	}
	var r report
	r.paragraph("# Growth")
	r.paragraph("%s Times of decisions are script time on the server (`INFO commandstats`), of commands sent through a pipeline. "+
		"*Execution* is the time of the largest execution that decides some of "+thousands(burstCallers)+" calls made at the same moment, most of them for different "+
		"numbers of permits (`SLOWLOG`): Redis serves nothing else in that time. "+
		"Made by `go run . -growth`.", where)
	for _, part := range []func(context.Context, *testbed, options) ([]chart.Plot, error){
		growKeys, growLimit, growSubWindows, growEntries, growRules, growCallers, growBatch,
	} {
		plots, err := part(ctx, b, o)
		if err != nil {
			return err
		}
		for _, p := range plots {
			if len(p.Series) == 0 {
				continue
			}
			name := fileName(p.Title)
			if err := save(o, "growth/"+name, p.SVG()); err != nil {
				return err
			}
			t := plotTable(p)
			t.note = fmt.Sprintf("![%s](growth/%s)", p.Title, name)
			r.table(t)
		}
		if err := b.admin.FlushAll(ctx).Err(); err != nil {
			return err
		}
	}
	return r.finish(o, "growth.md")
}

// fileName is the title in lower case with hyphens.
func fileName(title string) string {
	name := []byte{}
	for _, c := range []byte(title) {
		switch {
		case c >= 'A' && c <= 'Z':
			name = append(name, c-'A'+'a')
		case c >= 'a' && c <= 'z' || c >= '0' && c <= '9':
			name = append(name, c)
		case len(name) > 0 && name[len(name)-1] != '-':
			name = append(name, '-')
		}
	}
	return string(name) + ".svg"
}

// plotTable has a row for each series and a column for each X.
func plotTable(p chart.Plot) table {
	t := table{title: p.Title, header: []string{p.Y + ", by " + p.X}}
	var columns []float64
	for _, s := range p.Series {
		for _, pt := range s.Points {
			at := 0
			for at < len(columns) && columns[at] < pt.X {
				at++
			}
			if at == len(columns) || columns[at] != pt.X {
				columns = append(columns[:at], append([]float64{pt.X}, columns[at:]...)...)
			}
		}
	}
	for _, x := range columns {
		t.header = append(t.header, thousands(int(x)))
	}
	for _, s := range p.Series {
		row := []string{s.Name}
		for _, x := range columns {
			y := math.NaN()
			for _, pt := range s.Points {
				if pt.X == x {
					y = pt.Y
				}
			}
			row = append(row, number(y))
		}
		t.add(row...)
	}
	return t
}

// A seriesSet collects the points of several series, in any order of the series.
type seriesSet struct{ series []chart.Series }

func (p *seriesSet) point(name string, x, y float64) {
	for i := range p.series {
		if p.series[i].Name == name {
			p.series[i].Points = append(p.series[i].Points, chart.Point{X: x, Y: y})
			return
		}
	}
	p.series = append(p.series, chart.Series{Name: name, Points: []chart.Point{{X: x, Y: y}}})
}
