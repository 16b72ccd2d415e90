"""openvino"""
