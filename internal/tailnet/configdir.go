package tailnet

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"tailscale.com/ipn/conffile"

	"github.com/tailplane/tailplane/internal/util/secret"
)

// A File holds the settings of a versioned Tailscale configuration file that a relay uses. Empty
// fields were not set.
type File struct {
	Hostname, ControlURL string
	AuthKey              secret.Text
}

// ReadConfigDir reads the file cap-<n>.hujson with the largest n that this program supports.
func ReadConfigDir(dir string) (File, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return File{}, fmt.Errorf("the configuration files: %w", err)
	}
	best := -1
	for _, e := range entries {
		text, isFile := strings.CutSuffix(e.Name(), ".hujson")
		text, isCap := strings.CutPrefix(text, "cap-")
		n, err := strconv.Atoi(text)
		if isFile && isCap && err == nil && n > best && n <= CapabilityVersion {
			best = n
		}
	}
	if best < 0 {
		return File{}, fmt.Errorf("%s has no configuration file cap-<n>.hujson with n at most %d", dir, CapabilityVersion)
	}
	path := filepath.Join(dir, fmt.Sprintf("cap-%d.hujson", best))
	c, err := conffile.Load(path)
	if err != nil {
		return File{}, fmt.Errorf("%s cannot be read as a configuration file", path) // no cause, because the text contains a key
	}
	var f File
	for _, field := range []struct{ to, from *string }{{&f.Hostname, c.Parsed.Hostname}, {&f.ControlURL, c.Parsed.ServerURL}} {
		if field.from != nil {
			*field.to = *field.from
		}
	}
	if c.Parsed.AuthKey != nil {
		f.AuthKey = secret.New(strings.TrimSpace(*c.Parsed.AuthKey))
	}
	return f, nil
}
