// Package docstest tests what README.md, CONTRIBUTING.md, CHANGELOG.md and the pages of docs/
// say: Go snippets compile, links lead somewhere, the steps of the installation work, and
// figures are those of bench/results.md.
package docstest
