package kubeconfig

import (
	"encoding/json"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/clientcmd/api/latest"

	"github.com/tailplane/tailplane/internal/util/safefile"
)

// A View is the merged content of the files of a KUBECONFIG list, decoded as kubectl decodes them. It is read-only: it has no comments and
// no unknown fields.
type View struct{ config *api.Config }

// LoadView reads the files of a list. A missing file is empty. It reads files with safefile and not with clientcmd's loading rules, because
// those follow symbolic links, open pipes and read files of any size. The error is a *ContentError, a *safefile.Error or comes from the
// system; each names the path.
func LoadView(paths []string) (View, error) {
	merged := api.NewConfig()
	for _, path := range slices.Backward(paths) { // the first file that sets a name wins
		text, err := safefile.Read(path)
		if err != nil {
			return View{}, err
		}
		config, err := decode(text)
		if err != nil {
			return View{}, &ContentError{path, 0, "kubectl cannot read it: " + err.Error()}
		}
		maps.Copy(merged.Clusters, config.Clusters)
		maps.Copy(merged.AuthInfos, config.AuthInfos)
		maps.Copy(merged.Contexts, config.Contexts)
		if config.CurrentContext != "" {
			merged.CurrentContext = config.CurrentContext
		}
	}
	return View{merged}, nil
}

// decode decodes one kubeconfig with the codec of clientcmd.Load. The clientcmd package itself would link an HTTP client, its
// authentication plugins and its rate limits, which reading a file does not need.
func decode(text []byte) (*api.Config, error) {
	config := api.NewConfig()
	if len(text) == 0 { // the codec rejects empty text
		return config, nil
	}
	_, _, err := latest.Codec.Decode(text, &schema.GroupVersionKind{Version: latest.Version, Kind: "Config"}, config)
	return config, err
}

// user returns the user entry with a name and its sign-in. It returns nil if tka did not write the entry.
func (v View) user(name string) (user *api.AuthInfo, s Signin) {
	user = v.config.AuthInfos[name]
	byTka := false
	switch {
	case user == nil:
	case user.Exec != nil:
		s, byTka = parsePlugin(user.Exec.Command, user.Exec.Args)
	default:
		var of struct{ Cluster string }
		if x, ok := user.Extensions[extensionName].(*runtime.Unknown); ok && json.Unmarshal(x.Raw, &of) == nil {
			s, byTka = parseProxyUser(user.Token, of.Cluster)
		}
	}
	if !byTka {
		return nil, s
	}
	return user, s
}

// SigninOf returns the sign-in of a context that tka wrote.
func (v View) SigninOf(context string) (s Signin, byTka bool) {
	c := v.config.Contexts[context]
	if c == nil {
		return s, false
	}
	user, s := v.user(c.AuthInfo)
	return s, user != nil
}

// UsesProxy reports whether a context that tka wrote reaches the cluster through the access proxy.
func (v View) UsesProxy(context string) bool {
	c := v.config.Contexts[context]
	if c == nil {
		return false
	}
	user, _ := v.user(c.AuthInfo)
	return user != nil && user.Exec == nil
}

// ContextOf returns the context that tka wrote for a sign-in, the first by name.
func (v View) ContextOf(s Signin) (context string, found bool) {
	for _, name := range slices.Sorted(maps.Keys(v.config.Contexts)) {
		if of, byTka := v.SigninOf(name); byTka && of == s {
			return name, true
		}
	}
	return "", false
}

// Entry returns the entry with a name as it is in the files, if tka wrote it.
func (v View) Entry(name string) (e Entry, byTka bool) {
	user, s := v.user(name)
	if user == nil || v.config.Contexts[name] == nil {
		return e, false
	}
	e = Entry{Signin: s, Name: name, Proxy: user.Exec == nil}
	if user.Exec != nil {
		e.Command, e.Args = user.Exec.Command, user.Exec.Args
	}
	if c := v.config.Clusters[name]; c != nil {
		e.Server, e.CA = c.Server, c.CertificateAuthorityData
	}
	return e, true
}

// SameCA reports whether the cluster entry with a name has the authority ca. It is true
// if there is no such entry or the entry holds no authority.
func (v View) SameCA(name string, ca []byte) bool {
	c := v.config.Clusters[name]
	return c == nil || c.CertificateAuthorityData == nil || slices.Equal(c.CertificateAuthorityData, ca)
}

// Current returns the current context, or "" if there is none.
func (v View) Current() string { return v.config.CurrentContext }
