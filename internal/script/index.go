package script

// A Named is a script that limiters run, and what it is called: the file of its algorithm, and what
// the script does. The name of a script for several limiters has all their files.
type Named struct {
	Name string
	*Script
}

// Index lists the scripts of every limiter, and Together makes those of limiters that decide together.
// Package ratelimit sets both, for commands that show what Redis runs.
var (
	Index    func() []Named
	Together func(limiters []string) ([]Named, error)
)

// Digest is the SHA-1 by which Redis knows the script.
func (s *Script) Digest() string { return s.BySHA[1].(string) }
