// Package before has the snippets of other libraries that the pages of docs/from show, so that
// they compile.
package before
