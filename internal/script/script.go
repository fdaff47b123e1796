// Package script puts Lua scripts together: those that a limiter runs are cut from
// the marked blocks of one complete script for each algorithm.
package script

import (
	"crypto/sha1"
	"encoding/hex"
)

// A Script is a Lua script, with the beginnings of the commands that run it. They
// are made once, because boxing a string in every call would allocate.
type Script struct {
	Source string
	BySHA  []any // EVALSHA and the digest
	Whole  []any // EVAL and the source
}

// New returns the script of source.
func New(source string) *Script {
	sum := sha1.Sum([]byte(source))
	return &Script{
		Source: source,
		BySHA:  []any{"evalsha", hex.EncodeToString(sum[:])},
		Whole:  []any{"eval", source},
	}
}
