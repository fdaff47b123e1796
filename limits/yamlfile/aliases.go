package yamlfile

import "go.yaml.in/yaml/v4"

// mostAliased is how many values aliases may add to a file: aliases of aliases multiply.
const mostAliased = 1_000_000

// checkAliases notes an alias that is a part of what it stands for, and aliases that add too many values: nobody would come to
// the end of such a file.
func (f *File) checkAliases(root *yaml.Node) {
	sizes := map[*yaml.Node]int64{} // of what has an anchor, with what aliases add; 0: it is not at its end yet
	var added int64
	var size func(*yaml.Node) int64
	size = func(n *yaml.Node) int64 {
		if n.Anchor != "" {
			sizes[n] = 0
		}
		all := int64(1)
		if n.Kind == yaml.AliasNode {
			all = sizes[n.Alias]
			if added = min(added+all, 1<<40); all == 0 {
				f.Errorf(n.Line, "*%s is a part of what it stands for; write it out", n.Value)
			}
		}
		for _, child := range n.Content {
			all = min(all+size(child), 1<<40)
		}
		if n.Anchor != "" {
			sizes[n] = all
		}
		return all
	}
	if size(root); added > mostAliased && f.Mistakes() == 0 {
		f.Errorf(1, "aliases add %d values to the file; write it with fewer of them", added)
	}
}
