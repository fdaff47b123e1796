// Package scripts holds the texts of the Lua scripts, for this module only.
package scripts

import "embed"

// Texts has each file of this folder.
//
//go:embed *.lua
var Texts embed.FS
