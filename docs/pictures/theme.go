package main

import (
	"bytes"
	"fmt"
	"html"
	"image/color"
	"strings"

	"gonum.org/v1/plot/vg/vgsvg"
)

// The colours of a light page. A dark page has its own, so each is written as a variable of CSS.
// Blue and vermilion can be told apart by the colour-blind too (Okabe and Ito).
var (
	ink   = color.NRGBA{0x24, 0x29, 0x2f, 0xff}
	soft  = color.NRGBA{0x57, 0x60, 0x6a, 0xff}
	line  = color.NRGBA{0xaf, 0xb8, 0xc1, 0xff}
	allow = color.NRGBA{0x00, 0x72, 0xb2, 0xff}
	deny  = color.NRGBA{0xbc, 0x4c, 0x00, 0xff}
)

var theme = []struct {
	color color.NRGBA
	name  string
	dark  string
}{
	{ink, "--ink", "#f0f6fc"},
	{soft, "--soft", "#9198a1"},
	{line, "--line", "#4b535d"},
	{allow, "--allow", "#56b4e9"},
	{deny, "--deny", "#f28b3c"},
}

// themed is the document that the canvas has drawn, in pixels, with colours for light and dark
// pages, with fonts that have the widths of those it was drawn with, and with a text for those who
// do not see it.
func themed(canvas *vgsvg.Canvas, description string) ([]byte, error) {
	var drawn bytes.Buffer
	if _, err := canvas.WriteTo(&drawn); err != nil {
		return nil, err
	}
	var light, dark strings.Builder
	replace := []string{"font-family:Liberation Sans", "font-family:'Liberation Sans',Arial,Helvetica,sans-serif"}
	for _, t := range theme {
		hex := fmt.Sprintf("#%02X%02X%02X", t.color.R, t.color.G, t.color.B)
		replace = append(replace, hex, "var("+t.name+")")
		fmt.Fprintf(&light, "%s:%s;", t.name, hex)
		fmt.Fprintf(&dark, "%s:%s;", t.name, t.dark)
	}
	body := strings.NewReplacer(replace...).Replace(drawn.String())
	_, body, found := strings.Cut(body, `xlink">`)
	if !found {
		return nil, fmt.Errorf("the canvas wrote another beginning: %.200q", drawn.String())
	}
	w, h := canvas.Size()
	head := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" viewBox="0 0 %g %g" role="img">
<title>%s</title>
<style>svg{%s}@media (prefers-color-scheme:dark){svg{%s}}</style>`,
		w.Points(), h.Points(), w.Points(), h.Points(), html.EscapeString(description), light.String(), dark.String())
	return []byte(head + body), nil
}

// inWords says what the rows show.
func inWords(rows []row) string {
	var all []string
	for _, r := range rows {
		all = append(all, fmt.Sprintf("%s: %d of %d allowed, at most %d in any 10 s", r.name, allowed(r.answers), len(r.answers), most(r.answers)))
	}
	return strings.Join(all, "; ")
}
