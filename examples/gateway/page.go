package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// A row of the page is a team, or one of its keys.
type row struct {
	Team, Key          string
	Spent, Budget      string
	TokensLeft, Tokens int
	Running, Places    int
}

// page shows who has spent what.
func (g *gateway) page(w http.ResponseWriter, r *http.Request) {
	rows, err := g.rows(r.Context())
	if err != nil {
		http.Error(w, "Redis cannot be asked", http.StatusServiceUnavailable)
		return
	}
	_ = pageTemplate.Execute(w, rows)
}

func (g *gateway) rows(ctx context.Context) (rows []row, err error) {
	byName := slices.SortedFunc(maps.Values(g.accounts), func(a, b *account) int {
		return cmp.Or(cmp.Compare(a.team, b.team), cmp.Compare(a.key, b.key))
	})
	for _, a := range byName {
		if len(rows) == 0 || rows[len(rows)-1].Team != a.team {
			spent, err1 := g.ledger.team(ctx, a.team)
			budget, err2 := a.teamMonth.Peek(ctx, teamID(a.team))
			rows = append(rows, row{Team: a.team, Spent: dollars(spent), Budget: dollars(budget.Limit)})
			err = errors.Join(err, err1, err2)
		}
		id := keyID(a.team, a.key)
		spent, err1 := g.ledger.key(ctx, a.team, a.key)
		budget, err2 := a.keyMonth.Peek(ctx, id)
		tokens, err3 := a.tokens.Peek(ctx, id)
		running, err4 := a.running.Peek(ctx, id)
		rows = append(rows, row{
			Team: a.team, Key: a.key, Spent: dollars(spent), Budget: dollars(budget.Limit),
			TokensLeft: tokens.Remaining, Tokens: tokens.Limit, Running: running.Limit - running.Remaining, Places: running.Limit,
		})
		err = errors.Join(err, err1, err2, err3, err4)
	}
	return rows, err
}

// dollars are to the micro-dollar.
func dollars(micros int) string { return fmt.Sprintf("%d.%06d", micros/1_000_000, micros%1_000_000) }
