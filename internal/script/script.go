// Package script assembles the Lua scripts that a limiter runs. Each algorithm is one
// complete script for one request; its other scripts are made from the marked blocks of
// that one.
package script

import (
	"crypto/sha1"
	"encoding/hex"
)

// A Script is a Lua script, with the first arguments of the commands that run it. These
// are made once, because boxing a string in every call would allocate.
type Script struct {
	Source string
	BySHA  []any // EVALSHA and the digest
	Whole  []any // EVAL and the source
}

// New returns a script with this source.
func New(source string) *Script {
	sum := sha1.Sum([]byte(source))
	return &Script{
		Source: source,
		BySHA:  []any{"evalsha", hex.EncodeToString(sum[:])},
		Whole:  []any{"eval", source},
	}
}

// Digest is the SHA-1 by which Redis knows the script.
func (s *Script) Digest() string { return s.BySHA[1].(string) }
