package settings_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/settings"
)

// SI-15: an absent signin.clusterWide differs from an empty one, also after the settings are printed and read again.
func TestSI15_ClusterWideSetting(t *testing.T) {
	for _, tt := range []struct {
		text string
		want settings.ClusterWide
		says string
	}{
		{"signin: {roles: [view, edit]}", nil, ""},
		{"signin: {roles: [view, edit], clusterWide: []}", settings.ClusterWide{}, ""},
		{"signin: {roles: [view, edit], clusterWide: [edit]}", settings.ClusterWide{{Role: "edit"}}, ""},
		{"signin: {roles: [view, edit], clusterWide: [{role: edit, by: request}, view]}", settings.ClusterWide{{Role: "edit", By: "request"}, {Role: "view"}}, ""},
		{"signin: {roles: [view], clusterWide: [edit]}", nil, `signin.roles does not list "edit"`},
		{"signin: {roles: [edit], clusterWide: [edit, {role: edit, by: request}]}", nil, `lists "edit" twice`},
		{"signin: {roles: [edit], clusterWide: [{role: edit, by: anyone}]}", nil, `"anyone" is not request`},
		{"signin: {roles: [edit], clusterWide: [{role: edit, from: request}]}", nil, `"from" is not a setting`},
		{"signin: {roles: [edit], clusterWide: [{by: request}]}", nil, `does not list ""`},
		{"signin: {roles: [edit], clusterWide: [[edit]]}", nil, "cannot unmarshal"},
		{"signin: {roles: [edit], clusterWide: edit}", nil, "cannot unmarshal"},
	} {
		f, err := settings.Parse([]byte(tt.text))
		if err == nil {
			err = f.Validate(settings.OperatorRole)
		}
		if tt.says != "" {
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: error %v, want %q", tt.text, err, tt.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		b, err := f.YAML()
		if err != nil {
			t.Fatal(err)
		}
		again, err := settings.Parse(b)
		if err != nil {
			t.Fatalf("%v in\n%s", err, b)
		}
		for what, got := range map[string]settings.ClusterWide{"parsed": f.Signin.ClusterWide, "printed and parsed": again.Signin.ClusterWide} {
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", tt.text, what, diff)
			}
		}
	}
}
