package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"

	"github.com/tryacquire/ratelimit/internal/chart"
)

// leaseFigures are of runs with real processes: what they wasted of a rule. They are not measured again for the picture;
// TestFiguresOfLeases in internal/testing/faulttest writes them with -waste.
//
//go:embed leases.csv
var leaseFigures []byte

// leasesPicture is the SVG of docs/leases.md: what larger slices cost.
func leasesPicture(context.Context) ([]byte, error) {
	rows, err := csv.NewReader(bytes.NewReader(leaseFigures)).ReadAll()
	if err != nil {
		return nil, err
	}
	p := chart.Plot{
		Title: "What slices waste of a rule, by processes whose demand comes and goes", X: "processes",
		Y: "% of the rule not used (behind each name: with the most processes)",
	}
	for _, row := range rows[1:] {
		name := "at most " + row[1] + " permits"
		if row[1] == "no bound" {
			name = "no bound"
		}
		processes, err := strconv.ParseFloat(row[0], 64)
		if err != nil {
			return nil, err
		}
		waste, err := strconv.ParseFloat(row[2], 64)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(p.Series, func(s chart.Series) bool { return s.Name == name })
		if i < 0 {
			i, p.Series = len(p.Series), append(p.Series, chart.Series{Name: name})
		}
		p.Series[i].Points = append(p.Series[i].Points, chart.Point{X: processes, Y: waste})
	}
	if len(p.Series) == 0 {
		return nil, fmt.Errorf("leases.csv has no figures")
	}
	return []byte(p.SVG()), nil
}
