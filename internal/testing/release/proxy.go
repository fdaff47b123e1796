// Package release tries a release before it is published: a proxy of files serves every module
// of this repository as it would stand under its tag, and a user's module gets each from there.
package release

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const rootPath = "github.com/tryacquire/ratelimit"

// A Module is a module of the repository.
type Module struct {
	Dir  string // "." or a folder
	Path string
}

// Modules are those of the repository at root, that of root first.
func Modules(root string) ([]Module, error) {
	names, err := tracked(root)
	if err != nil {
		return nil, err
	}
	var all []Module
	for _, name := range names {
		if path.Base(name) == "go.mod" {
			dir := path.Dir(name)
			all = append(all, Module{dir, path.Join(rootPath, dir)})
		}
	}
	slices.SortFunc(all, func(a, b Module) int { return cmp.Compare(a.Dir, b.Dir) })
	return all, nil
}

// WriteProxy writes a proxy into dir that serves the tracked files of each module as version. See
// "GOPROXY protocol" in the reference of Go modules.
func WriteProxy(dir, root, version string) error {
	modules, err := Modules(root)
	if err != nil {
		return err
	}
	names, err := tracked(root)
	if err != nil {
		return err
	}
	files := map[string][]zip.File{}
	for _, name := range names {
		owner := owner(modules, name)
		inside := strings.TrimPrefix(name, owner+"/")
		files[owner] = append(files[owner], file{path: inside, disk: filepath.Join(root, name)})
	}
	for _, m := range modules {
		if err := m.write(dir, root, version, files[m.Dir]); err != nil {
			return err
		}
	}
	return nil
}

// tracked are the files of the repository.
func tracked(root string) ([]string, error) {
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, name := range strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if info, err := os.Lstat(filepath.Join(root, name)); err == nil && info.Mode().IsRegular() {
			names = append(names, name)
		}
	}
	return names, nil
}

// owner is the folder of the module that a file belongs to.
func owner(modules []Module, name string) string {
	longest := "."
	for _, m := range modules {
		if strings.HasPrefix(name, m.Dir+"/") && len(m.Dir) > len(longest) {
			longest = m.Dir
		}
	}
	return longest
}

func (m Module) write(dir, root, version string, files []zip.File) error {
	mod, err := m.tagged(root, version)
	if err != nil {
		return err
	}
	hasLicense := false
	for i, f := range files {
		if f.Path() == "go.mod" {
			files[i] = file{path: "go.mod", text: mod}
		}
		hasLicense = hasLicense || f.Path() == "LICENSE"
	}
	if !hasLicense { // the go command adds that of the repository
		files = append(files, file{path: "LICENSE", disk: filepath.Join(root, "LICENSE")})
	}
	escaped, err := module.EscapePath(m.Path)
	if err != nil {
		return err
	}
	at := filepath.Join(dir, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	var archive bytes.Buffer
	if err := zip.Create(&archive, module.Version{Path: m.Path, Version: version}, files); err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{version, time.Now().UTC()})
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"list": []byte(version + "\n"), version + ".info": info, version + ".mod": mod, version + ".zip": archive.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(at, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// tagged is go.mod as .ci/tag tags it: with the version of the other modules, and no replace.
func (m Module) tagged(root, version string) ([]byte, error) {
	name := filepath.Join(root, m.Dir, "go.mod")
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	f, err := modfile.Parse(name, text, nil)
	if err != nil {
		return nil, err
	}
	for _, r := range f.Require {
		if ours(r.Mod.Path) {
			if err := f.AddRequire(r.Mod.Path, version); err != nil {
				return nil, err
			}
		}
	}
	for _, r := range slices.Clone(f.Replace) {
		if err := f.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return nil, err
		}
	}
	f.Cleanup()
	return f.Format()
}

func ours(modulePath string) bool {
	return modulePath == rootPath || strings.HasPrefix(modulePath, rootPath+"/")
}

// A file is one of a module, on disk or with another text.
type file struct {
	path, disk string
	text       []byte
}

func (f file) Path() string { return f.path }

func (f file) Lstat() (fs.FileInfo, error) {
	if f.text != nil {
		return textInfo{f}, nil
	}
	return os.Lstat(f.disk)
}

func (f file) Open() (io.ReadCloser, error) {
	if f.text != nil {
		return io.NopCloser(bytes.NewReader(f.text)), nil
	}
	return os.Open(f.disk)
}

// textInfo describes a file with another text.
type textInfo struct{ file }

func (t textInfo) Name() string     { return path.Base(t.path) }
func (t textInfo) Size() int64      { return int64(len(t.text)) }
func (textInfo) Mode() fs.FileMode  { return 0o644 }
func (textInfo) ModTime() time.Time { return time.Time{} }
func (textInfo) IsDir() bool        { return false }
func (textInfo) Sys() any           { return nil }
