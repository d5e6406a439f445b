package volume

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Env returns a container's environment: standard first, then envFrom, then env. Later values replace earlier ones.
// It also returns the function that expands variables in commands and arguments.
func (r *Reader) Env(ctx context.Context, c corev1.Container, standard map[string]string) (env []string, expand func(string) string, err error) {
	all := maps.Clone(standard)
	for i, from := range c.EnvFrom {
		values := map[string]string{}
		switch {
		case from.ConfigMapRef != nil:
			m, err := r.getConfigMap(ctx, from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
			if err != nil {
				return nil, nil, fmt.Errorf("envFrom[%d]: %w", i, err)
			}
			if m != nil {
				values = m.Data
			}
		case from.SecretRef != nil:
			s, err := r.getSecret(ctx, from.SecretRef.Name, from.SecretRef.Optional)
			if err != nil {
				return nil, nil, fmt.Errorf("envFrom[%d]: %w", i, err)
			}
			if s != nil {
				for k, v := range s.Data {
					values[k] = string(v)
				}
			}
		}
		for k, v := range values {
			all[from.Prefix+k] = v
		}
	}
	for _, e := range c.Env {
		v, ok, err := r.value(ctx, e, all)
		if err != nil {
			return nil, nil, fmt.Errorf("env %s: %w", e.Name, err)
		}
		if ok {
			all[e.Name] = v
		}
	}
	for _, k := range slices.Sorted(maps.Keys(all)) {
		env = append(env, k+"="+all[k])
	}
	return env, func(s string) string { return Expand(s, all) }, nil
}

func (r *Reader) value(ctx context.Context, e corev1.EnvVar, before map[string]string) (string, bool, error) {
	if e.ValueFrom == nil {
		return Expand(e.Value, before), true, nil
	}
	switch from := e.ValueFrom; {
	case from.FieldRef != nil:
		v, err := r.Field(from.FieldRef.FieldPath)
		return v, true, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		m, err := r.getConfigMap(ctx, ref.Name, ref.Optional)
		if err != nil {
			return "", false, err
		}
		if m != nil {
			if v, ok := m.Data[ref.Key]; ok {
				return v, true, nil
			}
		}
		return missing("ConfigMap", ref.Name, ref.Key, ref.Optional)
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		s, err := r.getSecret(ctx, ref.Name, ref.Optional)
		if err != nil {
			return "", false, err
		}
		if s != nil {
			if v, ok := s.Data[ref.Key]; ok {
				return string(v), true, nil
			}
		}
		return missing("Secret", ref.Name, ref.Key, ref.Optional)
	}
	return "", false, fmt.Errorf("a source of an unknown kind")
}

func missing(kind, name, key string, optional *bool) (string, bool, error) {
	if optional != nil && *optional {
		return "", false, nil
	}
	return "", false, fmt.Errorf("%s %s has no key %s", kind, name, key)
}

// Expand replaces $(NAME) by the variable's value if the variable exists. $$ is a dollar sign.
func Expand(s string, values map[string]string) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i+1 == len(s) {
			b.WriteString(s)
			return b.String()
		}
		b.WriteString(s[:i])
		switch s = s[i+1:]; s[0] {
		case '$':
			b.WriteByte('$')
			s = s[1:]
		case '(':
			end := strings.IndexByte(s, ')')
			if end < 0 {
				b.WriteString("$" + s)
				return b.String()
			}
			if v, ok := values[s[1:end]]; ok {
				b.WriteString(v)
			} else {
				b.WriteString("$" + s[:end+1])
			}
			s = s[end+1:]
		default:
			b.WriteByte('$')
		}
	}
}
