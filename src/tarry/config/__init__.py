"""From text to a Spec: settings, components such as "fedbuff:buffer=3", and crosses of methods."""
