// Package page holds what the pages that this repository makes have in common: their colours and
// controls, and their charts. It needs no network.
//
// The charts are drawn by uPlot 1.6.32 (https://github.com/leeoniya/uPlot, MIT license). The files
// in the folder uplot are those of its package in npm, unchanged.
package page

import _ "embed"

//go:embed uplot/uPlot.iife.min.js
var uplotJS string

//go:embed uplot/LICENSE
var uplotLicense string

//go:embed uplot/uPlot.min.css
var uplotCSS string

//go:embed page.css
var pageCSS string

//go:embed chart.js
var chartJS string

// CSS is the style sheet of a page, for light and for dark screens of any width.
func CSS() string { return uplotCSS + "\n" + pageCSS }

// JS defines stackedChart, which chart.js describes. It must be in the page before the page's own
// script.
func JS() string { return "/* uPlot\n\n" + uplotLicense + "*/\n" + uplotJS + "\n" + chartJS }
