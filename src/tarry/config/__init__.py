"""Configuration, which makes a Spec from text: settings, components ("fedbuff:buffer=3"), crosses of methods."""
