package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	good := write("good.yaml", "limits: {api: {algorithm: calendar_window, limit: 5, every: day, time_zone: Europe/Berlin}}")
	bad := write("bad.yaml", "limits:\n  api: {algorithm: token_bucket, rate: 100/m}\n  b: {algorithm: token_bucket, rate: 1, burst: 2}\n")
	mistakes := []string{
		bad + ":2: limit api: burst is missing; write one, such as \"burst: 20\"",
		bad + ":3: limit b: rate cannot work: the rate \"1\" has no period; write a count and a period, such as 10/m, 500/h or 10/90s",
	}

	code, out, problems := command("check", good)
	require.Equal(t, []any{exitDone, "", ""}, []any{code, out, problems})
	code, out, problems = command("check", good, bad)
	require.Equal(t, []any{exitNo, strings.Join(mistakes, "\n") + "\n", ""}, []any{code, out, problems})

	code, out, _ = command("check", "--json", bad, good)
	require.Equal(t, exitNo, code)
	var got []checkedFile
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Equal(t, []checkedFile{{bad, mistakes}, {good, []string{}}}, got)

	code, _, problems = command("check", filepath.Join(dir, "none.yaml"))
	require.Equal(t, exitFailed, code)
	require.Contains(t, problems, "no such file")
	code, _, _ = command("check")
	require.Equal(t, exitUsage, code)

	var stdout bytes.Buffer
	code = program{stdin: strings.NewReader("limits: {a\x1b[1m: {}}"), stdout: &stdout, stderr: &stdout}.command(context.Background(), []string{"check", "-"})
	require.Equal(t, exitNo, code)
	require.NotContains(t, stdout.String(), "\x1b", "a terminal gets no control characters of a file")
}
