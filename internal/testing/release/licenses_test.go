package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// permissive are sentences of the licences that ask a user of a linked module for no more than a notice.
var permissive = map[string]string{
	"Permission is hereby granted, free of charge, to any person obtaining a copy":                                 "MIT",
	"Redistribution and use in source and binary forms, with or without modification, are permitted provided that": "BSD",
	"Apache License Version 2.0": "Apache-2.0",
	"Permission to use, copy, modify, and/or distribute this software for any purpose with or": "ISC",
}

// TestLicencesOfWhatIsLinked: each module that a published package links has a permissive licence,
// and none of the GNU family beside it.
func TestLicencesOfWhatIsLinked(t *testing.T) {
	root := repository(t)
	modules, err := Modules(root)
	require.NoError(t, err)
	found := map[string][]string{}
	for _, m := range modules {
		if !published(m.Dir) {
			continue
		}
		packages := []string{"go", "list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Dir}}{{end}}"}
		if m.Dir == "." {
			packages = append(packages, imported(m)...)
		} else {
			packages = append(packages, "./...")
		}
		for line := range strings.Lines(output(t, filepath.Join(root, m.Dir), packages...)) {
			path, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
			if path == "" || ours(path) || found[path] != nil {
				continue
			}
			found[path] = licences(t, dir)
			require.NotEmpty(t, found[path], "%s, linked by %s, has no permissive licence that is known here: read its files, then add a sentence to the list", path, m.Path)
			require.NotContains(t, found[path], "GNU", "%s, linked by %s", path, m.Path)
		}
	}
	require.Contains(t, found, "github.com/redis/go-redis/v9")
	for path, ids := range found {
		t.Log(path, ids)
	}
}

// licences are those of the files of a module that are named for them.
func licences(t *testing.T, dir string) (ids []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		name := strings.ToUpper(entry.Name())
		if entry.IsDir() || !strings.HasPrefix(name, "LICEN") && !strings.HasPrefix(name, "COPYING") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		require.NoError(t, err)
		words := strings.Join(strings.Fields(string(text)), " ")
		for sentence, id := range permissive {
			if strings.Contains(words, sentence) {
				ids = append(ids, id)
			}
		}
		if strings.Contains(strings.ToUpper(words), "GENERAL PUBLIC LICENSE") {
			ids = append(ids, "GNU")
		}
	}
	return ids
}
