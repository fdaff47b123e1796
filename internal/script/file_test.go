package script

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const example = `-- header
local key = KEYS[1]

-- <load>
local a = 1
  -- <inner>
  a = 2
  -- </inner>
-- </load>

if a then
  -- <store>
  set(a)
  -- </store>
end
`

func TestBlocksHoldWhatStandsBetweenTheirMarks(t *testing.T) {
	f := Parse("example.lua", example)
	require.Equal(t, map[string]string{
		"load":  "local a = 1\n  -- <inner>\n  a = 2\n  -- </inner>\n",
		"inner": "  a = 2\n",
		"store": "  set(a)\n",
	}, f.Blocks())
	require.Equal(t, example, f.Script().Source())
	require.Equal(t, "example.lua", f.Name())
}

func TestFillPutsBlocksInTheirPlaces(t *testing.T) {
	s := Parse("example.lua", example).Fill("begin\n  -- <inner/>\n-- <store/>\n-- <clock?/>\nend\n")
	require.Equal(t, "begin\n  -- <inner>\n    a = 2\n-- <store>\n  set(a)\nend\n", s.Source())
}

func TestFillPanicsWhereABlockIsMissing(t *testing.T) {
	require.PanicsWithValue(t, "script: example.lua has no block <lode>", func() {
		Parse("example.lua", example).Fill("-- <lode/>\n")
	})
}

func TestWithReplacesBlocks(t *testing.T) {
	f := Parse("example.lua", example).With(Parse("other.lua", "-- <load>\nlocal a = 3\n-- </load>\n-- <new>\nb()\n-- </new>\n"))
	require.Equal(t, `-- header
local key = KEYS[1]

-- <load>
local a = 3
-- </load>

if a then
  -- <store>
  set(a)
  -- </store>
end
`, f.Script().Source())
	require.Equal(t, "-- <load>\nlocal a = 3\n-- <new>\nb()\n", f.Fill("-- <load/>\n-- <new/>\n").Source(), "a new block is there for templates")
}

func TestAnswerInWordsReturnsThem(t *testing.T) {
	f := Parse("x.lua", "-- <answer>\nreturn a\n-- </answer>\n--[[\n-- <words>\nout[size + 1] = a\n-- </words>\n]]\n").AnswerInWords()
	require.Equal(t, "-- <answer>\nlocal out, size = {}, 0\nout[size + 1] = a\nreturn out\n-- </answer>\n"+
		"--[[\n-- <words>\nout[size + 1] = a\n-- </words>\n]]\n", f.Script().Source())
}

func TestParsePanicsWhereMarksDoNotMatch(t *testing.T) {
	for text, want := range map[string]string{
		"-- <a>\n":                           "script: x.lua: <a> has no end",
		"-- </a>\n":                          "script: x.lua: </a> does not end the block before it",
		"-- <a>\n-- <b>\n-- </a>\n-- </b>\n": "script: x.lua: </a> does not end the block before it",
		"-- <a>\n-- </a>\n-- <a>\n-- </a>\n": "script: x.lua: two blocks <a>",
		"-- <a>\n-- <a>\n-- </a>\n-- </a>\n": "script: x.lua: two blocks <a>",
	} {
		require.PanicsWithValue(t, want, func() { Parse("x.lua", text) }, text)
	}
}

func TestLinesThatOnlySomeFilesHave(t *testing.T) {
	template := "a\n-- <if pay>\nif {\n-- <pay/>\n}\n-- </if pay>\n-- <unless pay>\nfree\n-- </unless pay>\nb\n"
	with := Parse("f", "-- <pay>\n1\n-- </pay>\n")
	require.Equal(t, "a\nif {\n-- <pay>\n1\n}\nb\n", with.Fill(template).Source())
	require.Equal(t, "a\nfree\nb\n", Parse("f", "").Fill(template).Source())
	require.Equal(t, "a\nfree\nb\n", with.Move("pay", "earn").Fill(template).Source())
	require.Equal(t, "-- <earn>\n1\n", with.Move("pay", "earn").Fill("-- <earn/>\n").Source())
}

func TestIncludePutsBlocksOfAnotherFileInTheirPlaces(t *testing.T) {
	common := Parse("common.lua", "-- <one>\nlocal a = 1\n\nif a then\n  -- <two>\n  local b = 2\n  -- </two>\nend\n-- </one>\n-- <own>\nlocal c = 3\n-- </own>\n")
	require.Equal(t, `do
  -- <one>
  local a = 1

  if a then
    -- <two>
    local b = 2
    -- </two>
  end
  -- </one>
end
-- <other/>
-- <own>
local d = 4
-- </own>
-- <own/>
`, Include("do\n  -- <one/>\nend\n-- <other/>\n-- <own>\nlocal d = 4\n-- </own>\n-- <own/>\n", common))
}
