"""Does the model you are about to deploy give the same answers as the model you trained?"""
