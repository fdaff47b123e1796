// Package before has the snippets of other libraries that the pages of docs/from show, so that
// they compile, and what becomes of redis_rate, so that one test asks both.
package before
