package serve

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
)

// TestKubernetes: the example's documents are YAML, and its config can be served.
func TestKubernetes(t *testing.T) {
	text, err := os.ReadFile("example/kubernetes.yaml")
	require.NoError(t, err)
	var kinds []string
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		var object struct {
			Kind string
			Data map[string]string
		}
		require.NoError(t, yaml.Unmarshal(document, &object))
		kinds = append(kinds, object.Kind)
		for name, file := range object.Data {
			require.NoError(t, Check(false, Source{name, []byte(file)}))
		}
	}
	require.Equal(t, []string{"ConfigMap", "Deployment", "Service"}, kinds)
}

// TestExampleConfig: the config of compose.yaml can be served, and the other examples are YAML.
func TestExampleConfig(t *testing.T) {
	files, err := Dir("example/config")()
	require.NoError(t, err)
	require.Len(t, files, 1)
	require.NoError(t, Check(false, files...))
	for _, name := range []string{"example/compose.yaml", "example/envoy.yaml"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		var any map[string]any
		require.NoError(t, yaml.Unmarshal(text, &any), name)
	}
}
