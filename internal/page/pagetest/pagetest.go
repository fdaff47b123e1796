// Package pagetest says what is wrong with a page for those who cannot see it well, use no pointer,
// or have a narrow screen.
package pagetest

import _ "embed"

// Audit is an expression in JavaScript for the page's browser. Its value is an array of faults, each
// a text that names the element. It finds controls and pictures without a name, texts with less contrast than
// 4.5 to 1, cells that no header names, ids that occur twice, and a page that is wider than the
// screen.
//
//go:embed audit.js
var Audit string
